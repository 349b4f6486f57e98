"""Trial of a back end on this machine."""


def try_backend(name: str) -> str:
    """Split two layers over two stages; return ``'works'`` if the back end finds the only solution, or what fails."""
    try:
        import numpy as np

        from pipeplan_formulations import partition
        from pipeplan_formulations.common.report import Limits

        def table(*shape: int) -> "np.typing.NDArray[np.int64]":
            return np.ones(shape, np.int64)

        problem = partition.ChainPartition(
            forward=table(2, 2),
            backward=table(2, 2),
            send=table(1, 1),
            send_back=table(1, 1),
            saved=table(2),
            in_flight=table(2),
            limit=9 * table(2),
            micro_batches=2,
        )
        report = partition.solve(problem, Limits(time=20), backend=name)
    except Exception as error:  # whatever is wrong is reported
        return f"fails: {type(error).__name__}: {error}"
    return "works" if report.solution == (0, 1, 2) else f"wrong answer: {report.solution}"
