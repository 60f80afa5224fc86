"""XLA's own options, which it reads in XLA_FLAGS when JAX is first used; later they change nothing."""

import os

LATENCY_HIDING = "xla_gpu_enable_latency_hiding_scheduler"


def default(name: str, value: str) -> None:
    """Sets an option, unless XLA_FLAGS has it: what the user says there stands.

    Args:
      name: of an option that jaxlib knows, or it ends the process.
      value: of it.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    if not any(flag.partition("=")[0] == f"--{name}" for flag in flags):
        os.environ["XLA_FLAGS"] = " ".join([*flags, f"--{name}={value}"])


def hide_latency() -> None:
    """Has XLA's latency-hiding scheduler order a program for GPUs, so that collectives run while others compute.

    A collective begins when its gradients are there, and what needs none of its results goes on meanwhile: of reducers
    that take leaf by leaf, that is the backward pass of the layers before. Nothing changes on CPU, and on TPU, where it
    is so anyway. Not tried on a GPU.
    """
    default(LATENCY_HIDING, "true")
