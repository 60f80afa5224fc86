"""Optimizers, learning-rate schedules and scaling rules by name, local work before communication, parameter averages.

    optimizers.make(config.optimizer, learning_rate=rate)  -> an optax transformation
    schedules.make(config.schedule, total_steps=..., steps_per_epoch=...)  -> factor(step), with no unit
    scaling.factor("sqrt", num_workers=8)  -> factor of the peak rate
    accumulation.make(**config.accumulation, ...)  -> micro-batches or local steps of a worker
    loss_scaling.make(**config.loss_scaling)  -> gradients in half precision
    ema.update(average, params, num_updates=..., decay=...)  -> the new average

The rate of update `step` (counted from 0) is `peak * scale * factor(step)`; `peak` is `config.optimizer.learning_rate`.
"""

from optim import accumulation as accumulation
from optim import ema as ema
from optim import loss_scaling as loss_scaling
from optim import optimizers as optimizers
from optim import scaling as scaling
from optim import schedules as schedules
