from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from metavrf.files import map_tensors, read_tensors, tensors_as_bytes, write_rows
from metavrf.joined import Joined, as_it_is

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the limit and /proc are Linux's")
LIMIT = 0.6  # gigabytes


@LINUX
def test_a_bank_is_trained_on_under_a_limit_of_memory_that_it_exceeds(tmp_path: Path) -> None:
    save = tmp_path / "figures.json"
    command = [sys.executable, "benchmarks/large_bank.py", "--gigabytes", "1", "--limit", str(LIMIT), "--steps", "2"]
    command += ["--channels", "8", "--folder", str(tmp_path), "--save", str(save)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(save.read_text())
    assert found["finite"]
    assert found["anonymous_beyond_gigabytes"] < LIMIT < 0.9 < found["bank_gigabytes"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_file_written_row_by_row_has_the_bytes_of_one_written_at_once(tmp_path: Path, dtype: torch.dtype) -> None:
    rows = torch.randint(256, (7, 2, 3)).to(dtype)
    others, metadata = {"starts": torch.tensor([0, 4]), "counts": torch.tensor([4, 3])}, {"names": ["a", "b"]}
    file = tmp_path / "rows.safetensors"
    with write_rows(file, "inputs", dtype, rows.shape, tensors=others, metadata=metadata) as writer:
        for row in (5, 0, 3):
            writer.put(row, rows[row : row + 2])
        writer.put(2, rows[2])
    assert file.read_bytes() == tensors_as_bytes({"inputs": rows, **others}, metadata)
    for read in (read_tensors(file), map_tensors(file, "inputs")):
        assert torch.equal(read[0]["inputs"], rows)
        assert read[1] == metadata


def test_a_file_whose_writing_fails_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="stop"),
        write_rows(tmp_path / "x", "inputs", torch.uint8, (2, 2), tensors={}, metadata={}) as writer,
    ):
        writer.put(0, torch.zeros(2, dtype=torch.uint8))
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []


def test_joined_samples_are_what_a_copy_of_all_would_be() -> None:
    first, second = torch.arange(48).view(3, 4, 4), torch.arange(100, 132).view(2, 4, 4)
    inner = Joined([(second, as_it_is)])
    joined = Joined([(first, as_it_is), (inner, lambda x: x.flip(2)), (first, lambda x: x.rot90(1, (1, 2)))])
    whole = torch.cat([first, second.flip(2), first.rot90(1, (1, 2))])
    assert joined.shape == whole.shape
    assert torch.equal(joined[:], whole)
    assert torch.equal(joined[4], whole[4])
    rows = torch.tensor([[7, 0], [3, 3], [4, 6]])
    assert torch.equal(joined[rows], whole[rows])
    assert torch.equal(torch.cat(list(joined.split(3))), whole)
