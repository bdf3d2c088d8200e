"""Servables of every kind stand behind one `predict`."""

import numpy as np
import pytest
from served import Scaled, x

from shoal.serve.errors import RequestError
from shoal.serve.servable import (
    EnsembleServable,
    LookupTable,
    ObjectServable,
    PipelineServable,
    Servable,
    is_batchable,
)

TABLE = LookupTable({"a": [1.0, 2.0], "b": [3.0, 4.0]})
KEYS = {"key": np.array([b"b", b"a"], dtype=object)}


def test_model_table_ensemble_and_pipeline_answer_through_one_interface() -> None:
    servables: list[tuple[Servable, dict, list]] = [
        (Scaled(2.0), x([1.0, 2.0]), [[2.0, 4.0]]),
        (TABLE, KEYS, [[3.0, 4.0], [1.0, 2.0]]),
        (EnsembleServable([Scaled(1.0), Scaled(3.0)]), x([1.0, 2.0]), [[2.0, 4.0]]),
        (PipelineServable([TABLE, Scaled(2.0)]), KEYS, [[6.0, 8.0], [2.0, 4.0]]),
    ]
    for servable, inputs, expected in servables:
        (output,) = servable.predict(inputs).values()
        assert output.tolist() == expected
        assert output.dtype == np.float32
        assert is_batchable(servable)


def test_any_object_with_predict_is_one() -> None:
    class Plain:
        def predict(self, numbers: np.ndarray) -> list[float]:
            return [float(numbers.sum())]

    servable = ObjectServable(Plain())
    assert servable.predict(x([1.0, 2.0]))["output"].tolist() == [3.0]
    assert not is_batchable(servable)  # it did not say that rows are independent


def test_text_of_an_object_becomes_bytes() -> None:
    class Talks:
        def predict(self, numbers: np.ndarray) -> list[str]:
            return ["yes", "no"]

    assert ObjectServable(Talks()).predict(x())["output"].tolist() == [b"yes", b"no"]


def test_an_object_without_predict_is_refused() -> None:
    with pytest.raises(RequestError, match="list has no method predict"):
        ObjectServable([])


def test_a_key_that_is_not_there_is_named() -> None:
    with pytest.raises(RequestError, match="no key b'c'"):
        TABLE.predict({"key": np.array([b"c"], dtype=object)})


@pytest.mark.parametrize("rows", [{}, {"a": [1.0], "b": [1.0, 2.0]}])
def test_a_table_of_uneven_rows_is_refused(rows: dict[str, list[float]]) -> None:
    with pytest.raises(RequestError, match="at least one row"):
        LookupTable(rows)


def test_members_of_an_ensemble_take_the_same_inputs() -> None:
    with pytest.raises(RequestError, match="the same inputs"):
        EnsembleServable([Scaled(1.0, 2), Scaled(1.0, 3)])
