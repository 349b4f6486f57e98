"""The least that devices send and receive for a product of two matrices, however much memory they have.

Al Daas, Ballard, Grigori, Kumar and Rouse, Tight Memory-Independent Parallel Matrix Multiplication Communication Lower
Bounds, 2022 (arXiv 2205.13407). docs/meshes.md has the proof.
"""

from math import sqrt


def accessed(rows: int, inputs: int, outputs: int, devices: int) -> float:
    """Return the least numbers of both operands and the product that some device has to do with.

    With the lengths m ≥ n ≥ k it is nk + (mk + mn) / P up to P = m / n devices, 2 √(mnk² / P) + mn / P up to mn / k²,
    and 3 (mnk / P)^⅔ beyond.
    """
    k, n, m = sorted((rows, inputs, outputs))
    if devices * n <= m:
        return n * k + (m * k + m * n) / devices
    if devices * k * k <= m * n:
        return 2 * sqrt(m * n * k * k / devices) + m * n / devices
    return float(3 * (m * n * k / devices) ** (2 / 3))


def least_received(rows: int, inputs: int, outputs: int, devices: int, held: float) -> float:
    """Return a lower bound on the numbers that some device receives and sends for a product, in parts of sums.

    It holds if each device does an equal part of the multiplications, and has at most ``held`` numbers of the operands
    before and of the product after it.
    """
    return max(accessed(rows, inputs, outputs, devices) - held, 0.0)
