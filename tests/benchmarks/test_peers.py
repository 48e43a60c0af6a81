"""The driver of the peers; the peers themselves are installed by `make bench-peers` only."""

from __future__ import annotations

from pathlib import Path

import measure as peers
import pytest

from metavrf.errors import UserError
from speed.results import Row, Section
from speed.work import Work

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "peers"


def test_a_peer_that_does_not_install_is_reported_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(self: peers.Peer, folder: Path) -> None:
        raise UserError("pip failed: no such package")

    monkeypatch.setattr(peers.Peer, "install", install)
    options = peers.Options(rounds=1, threads=1, environments=tmp_path, quick=True, seconds=0.05)
    results = peers.measure(options, peers.PEERS)
    *skipped, pictures = results.skipped
    assert skipped == [f"{peer.name}: pip failed: no such package" for peer in peers.PEERS]
    assert pictures.startswith("accuracy on pictures at equal time")
    keys = ["step", "evaluation", "adaptation", "sine", "sine-adaptation", "race-curves"]
    assert [section.key for section in results.sections] == keys
    assert all(row.name.startswith("metavrf") for section in results.sections for row in section.rows)
    assert results.aims == []
    section = next(section for section in results.sections if section.key == "sine")
    sine = {row.name: row for row in section.rows}
    assert f"{peers.TNP}, our allocator" in sine
    assert "metavrf, one kernel, exact, our allocator" in sine
    assert f"metavrf, {Work.quick().kernels} kernels, exact, our allocator" in sine
    assert section.reference == "metavrf, one kernel, exact, our allocator"
    assert all(row.median > 0 for row in sine.values())


def test_every_peer_has_a_script_and_pieces() -> None:
    for peer in peers.PEERS:
        script = (BENCHMARKS / f"peer_{peer.name}.py").read_text()
        pieces = [piece for named in peer.pieces().values() for piece in named.values()]
        assert pieces
        assert [piece for piece in pieces if f'"{piece}"' not in script] == []


def test_the_aims_beside_peers_are_the_speed_of_metavrf_in_that_of_their_prototypical_networks() -> None:
    rows = [Row("metavrf, MetaVRF", [1.0]), Row("easyfsl, prototypical", [1.8]), Row("other", [9.0])]
    (aim,) = peers.peer_aims([Section("step", "", "ms", rows, "metavrf, MetaVRF")])
    assert (aim.measured, aim.aim, aim.met) == (1.8, 1.5, True)
