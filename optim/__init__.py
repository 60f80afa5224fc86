"""Optimizers and learning-rate schedules by name, and the averages of parameters.

    optimizers.make(config.optimizer, learning_rate=rate)                    -> an optax transformation
    outer.make(config.outer)                                                 -> the same, of the combined progress
    schedules.make(config.schedule, total_steps=..., steps_per_epoch=...)    -> factor(step), without a unit
    factors.of_workers("sqrt", num_workers=8)                                -> a factor of the peak rate
    averages.ema(average, params, num_updates=..., decay=...)                -> the new average
    bounds.adam(N, d, R, L, alpha, betas, gap=gap)                           -> a bound on Adam's squared gradient
    averages.schedule_free(opt_state, params)                                -> a schedule-free optimizer's own, or None
    in_full_precision(optax.adam)(0.1)                                       -> Adam that computes in float32 at least
    testing.check(lambda: my_optimizer(0.1))                                 -> AssertionError that names a broken law

The learning rate of update ``step``, counted from 0, is ``peak * scale * factor(step)``; ``peak`` is
``config.optimizer.learning_rate``.
"""

from optim import averages, bounds, factors, norms, optimizers, outer, schedules
from optim.precision import in_full_precision
from optim.rules.global_norm import clip_by_global_norm
