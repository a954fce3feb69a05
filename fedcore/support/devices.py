"""The device of a computation: the given one, the default, or a clear error."""

from __future__ import annotations

import os
import platform

import torch
import torch.distributed as dist

from . import checks

ISA = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")  # variables that limit the instructions of oneDNN
BFLOAT16 = ("BF16", "FP16", "AMX", "AVX10", "VNNI_2", "DEFAULT", "ALL")  # values with these parts allow bfloat16


def launched() -> bool:
    """Whether torchrun started this process together with others."""
    return dist.is_available() and dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def default() -> str:
    """The default device: a GPU if there is one (under torchrun, one per process), otherwise the CPU."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}" if launched() else "cuda"


def available(device: str | torch.device | None) -> torch.device:
    """The given device, or the default if it is None; raises ValueError if it is not available."""
    device = default() if device is None else device
    try:
        found, asked = torch.empty(0, device=device).device, torch.device(device)
        if found.type == "meta" or (found.type == "cpu" and asked.index):
            raise RuntimeError("it holds no numbers" if found.type == "meta" else "there is one CPU, 'cpu'")
        return found
    except Exception as e:  # the type of torch's error depends on the missing device
        why = first_line(e).split(". ")[0]
        why = why if len(why) < 120 else "no device of this PyTorch"
        raise ValueError(
            f"device={checks.brief(str(device))} is not available here ({why}); "
            "use 'cpu', 'cuda' on a machine with an NVIDIA GPU, or None"
        ) from e


def first_line(e: Exception) -> str:
    """The first line of an error's message, or its type's name."""
    return (str(e).splitlines() or [type(e).__name__])[0]


def warn_of_bfloat16(device: torch.device) -> None:
    """Warn if bfloat16 is slower than float32, because an x86 processor without instructions for it emulates it."""
    if device.type != "cpu" or platform.machine().lower() not in ("x86_64", "amd64"):
        return
    bounds = [os.environ[name].upper() for name in ISA if name in os.environ]
    allowed = all(any(part in bound for part in BFLOAT16) for bound in bounds)
    if not allowed or not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        checks.warn(
            "compute=torch.bfloat16: this processor has no instructions for it (AVX512_BF16, AMX), so that training "
            "takes longer than in float32; leave compute out unless you want the rounding itself",
        )
