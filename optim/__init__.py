"""Optimizers and learning-rate schedules by name, and the averages of parameters.

    optimizers.make(config.optimizer, learning_rate=rate)                    -> an optax transformation
    outer.make(config.outer)                                                 -> the same, of the combined progress
    schedules.make(config.schedule, total_steps=..., steps_per_epoch=...)    -> factor(step), without a unit
    scaling.factor("sqrt", num_workers=8)                                    -> a factor of the peak rate
    ema.update(average, params, num_updates=..., decay=...)                  -> the new average
    bounds.adam(N, d, R, L, alpha, b1, b2, gap=gap)                          -> a bound on Adam's squared gradient
    schedule_free.average(opt_state, params)                                 -> a schedule-free optimizer's own, or None

The learning rate of update ``step``, counted from 0, is ``peak * scale * factor(step)``; ``peak`` is
``config.optimizer.learning_rate``.
"""

from optim import bounds as bounds
from optim import ema as ema
from optim import optimizers as optimizers
from optim import outer as outer
from optim import scaling as scaling
from optim import schedule_free as schedule_free
from optim import schedules as schedules
