"""Peak speeds of named GPUs, as their makers state them.

The figures were read in public copies and quotations of the documents that are named; what none confirmed is left out.
"""

from __future__ import annotations

from typing import NamedTuple


class Peak(NamedTuple):
    """Peak floating-point operations per second by precision, dense (never with 2:4 sparsity), and where it is said.

    16-bit figures are those of the matrix units where there are any (not in the P100), with accumulation in 32 bits.
    What a source does not give is left out.
    """

    flops: dict[str, float]
    source: str


def _tera(source: str, **figures: float) -> Peak:
    return Peak({precision: 1e12 * figure for precision, figure in figures.items()}, source)


# Sources print figures with sparsity where they can: halved here. A worker is one device as software sees it.
GPUS: dict[str, Peak] = {
    "K80": _tera("NVIDIA Tesla K80 data sheet, 2014: half of the board's 8.74, which has two GPUs", fp32=4.37),
    "P100 PCIe": _tera("NVIDIA Tesla P100 PCIe data sheet, 2016", fp32=9.3, fp16=18.7),
    "P100 SXM2": _tera("NVIDIA Tesla P100 data sheet, 2016", fp32=10.6, fp16=21.2),
    "V100 PCIe": _tera("NVIDIA V100 data sheet, 2020", fp32=14.0, fp16=112),
    "V100 SXM2": _tera("NVIDIA V100 data sheet, 2020", fp32=15.7, fp16=125),
    "T4": _tera("NVIDIA T4 data sheet, 2019", fp32=8.1, fp16=65),
    "RTX 2080 Ti": _tera("NVIDIA Turing architecture white paper, 2018, reference board", fp32=13.4, fp16=53.8),
    "A100": _tera("NVIDIA A100 data sheet, 2021, all forms alike", fp32=19.5, tf32=156, fp16=312, bf16=312),
    "A10": _tera("NVIDIA A10 data sheet, 2021", fp32=31.2, fp16=125, bf16=125),
    "RTX 3090": _tera("NVIDIA Ampere GA102 architecture white paper, 2020", fp32=35.6, fp16=71, bf16=71),
    "RTX 4090": _tera("NVIDIA Ada architecture white paper 2.02, appendix A", fp32=82.6, fp16=165.2, bf16=165.2),
    "L4": _tera("NVIDIA L4 data sheet, 2023", fp32=30.3, tf32=60, fp16=121, bf16=121),
    "L40S": _tera("NVIDIA L40S data sheet, 2023", fp32=91.6, fp16=362, bf16=362),
    "H100 PCIe": _tera("NVIDIA H100 architecture white paper, 2022", fp32=51.2, tf32=378, fp16=756, bf16=756),
    "H100 SXM": _tera("NVIDIA H100 architecture white paper, 2022", fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4),
    "H200": _tera("NVIDIA H200 data sheet, 2023", fp32=67, tf32=494.5, fp16=989.5, bf16=989.5),
    "MI250X": _tera(
        "AMD Instinct MI250X data sheet, 2021, matrix units: half of 95.7 and 383", fp32=47.85, fp16=191.5, bf16=191.5
    ),
    "MI300X": _tera("AMD Instinct MI300X data sheet, 2023", fp32=163.4, fp16=1307.4, bf16=1307.4),
}


def described() -> str:
    """One line a GPU: its name and its figures in TFLOP/s."""
    return "\n".join(
        f"  {name:<12}" + ", ".join(f"{precision} {value / 1e12:g}" for precision, value in peak.flops.items())
        for name, peak in GPUS.items()
    )
