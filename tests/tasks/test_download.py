from __future__ import annotations

import hashlib
import io
import json
import socket
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from loopback import needs_loopback
from metavrf.errors import UserError
from metavrf.files import sum_file
from metavrf.tasks import download
from metavrf.tasks.download import DOWNLOADS, OFFICIAL, RemoteFile, download_cifar100, download_omniglot, fetch

DATA = np.random.default_rng(0).bytes(200_000)  # several chunks


class Server:
    """A web server on the loopback interface that can misbehave; notes every request's Range."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str | None] = []
        self.cut_after: int | None = None
        self.ignores_range = False
        self.refuses_range = False
        self.chunked = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers["Range"]
        self.asked.append(asked)
        request.close_connection = True
        data = self.files.get(request.path)
        if data is None:
            request.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and not self.ignores_range else 0
        if start >= len(data) or (asked and self.refuses_range):
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        if self.chunked:
            request.send_header("Transfer-Encoding", "chunked")
            request.end_headers()
            request.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data) - start, data[start : self.cut_after]))
            return
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        with suppress(ConnectionError):  # a client may hang up when it has seen enough
            request.wfile.write(data[start : self.cut_after])

    def offer(self, name: str, data: bytes) -> RemoteFile:
        self.files[f"/{name}"] = data
        return RemoteFile(f"http://127.0.0.1:{self._http.server_port}/{name}", len(data), digest(data))

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    needs_loopback()
    monkeypatch.setenv("no_proxy", "*")
    server = Server()
    yield server
    server.close()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def one_sentence(raised: pytest.ExceptionInfo[UserError]) -> str:
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_a_file_is_downloaded_whole_and_nothing_else_is_left(server: Server, tmp_path: Path) -> None:
    path = fetch(server.offer("some.bin", DATA), tmp_path / "new" / "folder")
    assert path.read_bytes() == DATA
    assert names_in(path.parent) == ["some.bin"]
    assert server.asked == [None]


def test_a_broken_download_resumes_where_it_stopped(server: Server, tmp_path: Path) -> None:
    file = server.offer("some.bin", DATA)
    server.cut_after = 100_000
    with pytest.raises(UserError, match=r"broke after 100000 of 200000 bytes.*is kept") as raised:
        fetch(file, tmp_path)
    assert file.url in one_sentence(raised)
    assert names_in(tmp_path) == ["some.bin.part"]

    server.cut_after = None
    assert fetch(file, tmp_path).read_bytes() == DATA
    assert server.asked == [None, "bytes=100000-"]
    assert names_in(tmp_path) == ["some.bin"]


def test_a_server_that_ignores_range_sends_all_of_it_again(server: Server, tmp_path: Path) -> None:
    server.ignores_range = True
    (tmp_path / "some.bin.part").write_bytes(DATA[:1000])
    assert fetch(server.offer("some.bin", DATA), tmp_path).read_bytes() == DATA


def test_a_range_that_the_server_refuses_starts_the_download_again(server: Server, tmp_path: Path) -> None:
    server.refuses_range = True
    (tmp_path / "some.bin.part").write_bytes(DATA[:1000])
    assert fetch(server.offer("some.bin", DATA), tmp_path).read_bytes() == DATA
    assert server.asked == ["bytes=1000-", None]


def test_a_file_that_became_shorter_than_what_is_kept_is_refused(server: Server, tmp_path: Path) -> None:
    file = server.offer("some.bin", DATA)
    server.offer("some.bin", DATA[:500])
    (tmp_path / "some.bin.part").write_bytes(DATA[:1000])
    with pytest.raises(UserError, match="500 bytes instead of 200000"):
        fetch(file, tmp_path)
    assert names_in(tmp_path) == []


def test_a_part_that_is_complete_is_only_checked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "some.bin.part").write_bytes(DATA)
    assert fetch(server.offer("some.bin", DATA), tmp_path).read_bytes() == DATA
    assert server.asked == []
    assert names_in(tmp_path) == ["some.bin"]


def test_a_part_that_is_too_long_is_not_resumed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "some.bin.part").write_bytes(DATA + b"more")
    assert fetch(server.offer("some.bin", DATA), tmp_path).read_bytes() == DATA
    assert server.asked == [None]


def test_a_file_without_an_announced_length_is_downloaded(server: Server, tmp_path: Path) -> None:
    server.chunked = True
    assert fetch(server.offer("some.bin", DATA), tmp_path).read_bytes() == DATA


def test_a_broken_download_without_an_announced_length_resumes_too(server: Server, tmp_path: Path) -> None:
    file = server.offer("some.bin", DATA)
    server.chunked, server.cut_after = True, 100_000
    with pytest.raises(UserError, match="is kept"):
        fetch(file, tmp_path)
    server.cut_after = None
    assert fetch(file, tmp_path).read_bytes() == DATA
    assert server.asked == [None, f"bytes={download.CHUNK}-"]  # of the last chunk, only half had come


def test_a_file_with_another_hash_is_deleted_and_named(server: Server, tmp_path: Path) -> None:
    file = server.offer("some.bin", DATA)
    server.offer("some.bin", DATA[::-1])
    with pytest.raises(UserError, match=f"SHA-256 {digest(DATA[::-1])} instead of {digest(DATA)}") as raised:
        fetch(file, tmp_path)
    assert file.url in one_sentence(raised)
    assert names_in(tmp_path) == []


def test_a_wrong_part_is_deleted_so_that_the_next_try_succeeds(server: Server, tmp_path: Path) -> None:
    file = server.offer("some.bin", DATA)
    (tmp_path / "some.bin.part").write_bytes(b"x" * 1000)
    with pytest.raises(UserError, match="SHA-256"):
        fetch(file, tmp_path)
    assert fetch(file, tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("sent", [DATA[:-1], DATA + b"x"], ids=["shorter", "longer"])
def test_a_file_of_another_size_is_deleted_and_named(sent: bytes, server: Server, tmp_path: Path) -> None:
    file = server.offer("some.bin", DATA)
    server.offer("some.bin", sent)
    with pytest.raises(UserError, match=f"{len(sent)} bytes instead of 200000") as raised:
        fetch(file, tmp_path)
    assert file.url in one_sentence(raised)
    assert names_in(tmp_path) == []


def test_an_endless_answer_is_not_read_to_its_end(server: Server, tmp_path: Path) -> None:
    file = server.offer("some.bin", b"short")
    server.offer("some.bin", DATA * 20)
    with pytest.raises(UserError, match=f"{download.CHUNK} bytes instead of 5"):
        fetch(file, tmp_path)


def test_a_missing_file_gives_a_sentence_and_keeps_what_was_received(server: Server, tmp_path: Path) -> None:
    file = server.offer("some.bin", DATA)
    server.files.clear()
    (tmp_path / "some.bin.part").write_bytes(DATA[:1000])
    with pytest.raises(UserError, match=r"404: Not Found.*is kept") as raised:
        fetch(file, tmp_path)
    assert file.url in one_sentence(raised)
    assert (tmp_path / "some.bin.part").read_bytes() == DATA[:1000]


def test_being_offline_gives_a_sentence_and_keeps_what_was_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as closed:  # bound, not listening: the connection is refused
        closed.bind(("127.0.0.1", 0))
        file = RemoteFile(f"http://127.0.0.1:{closed.getsockname()[1]}/some.bin", len(DATA), digest(DATA))
        (tmp_path / "some.bin.part").write_bytes(DATA[:1000])
        with pytest.raises(UserError, match=r"refused.*is kept") as raised:
            fetch(file, tmp_path)
    assert file.url in one_sentence(raised)
    assert (tmp_path / "some.bin.part").read_bytes() == DATA[:1000]


def test_a_server_that_falls_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = RemoteFile(f"http://127.0.0.1:{silent.getsockname()[1]}/some.bin", len(DATA), digest(DATA))
        with pytest.raises(UserError, match=r"timed out.*is kept"):
            fetch(file, tmp_path)


def test_a_folder_that_cannot_be_made_gives_a_sentence(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UserError, match=r"cannot download .* into .*taken"):
        fetch(server.offer("some.bin", DATA), tmp_path / "taken")


def test_a_file_that_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    file = server.offer("some.bin", DATA)
    (tmp_path / "some.bin").write_bytes(DATA)
    assert fetch(file, tmp_path) == tmp_path / "some.bin"
    assert server.asked == []


def test_a_file_that_is_there_but_wrong_is_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "some.bin").write_bytes(DATA[::-1])
    assert fetch(server.offer("some.bin", DATA), tmp_path).read_bytes() == DATA


def test_a_bar_is_shown_on_a_terminal_only_and_not_when_quiet(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = server.offer("some.bin", DATA)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    fetch(file, tmp_path / "pipe")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    fetch(file, tmp_path / "quiet", quiet=True)
    assert capsys.readouterr() == ("", "")
    fetch(file, tmp_path / "terminal")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "some.bin" in shown.err


def drawing(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random((105, 105)) < 0.5


def zip_of(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


def drawings(part: str, paths: list[str]) -> dict[str, bytes]:
    members = {f"images_{part}/": b"", "__MACOSX/images_x/A/character01/._0001_01.png": b"not a drawing"}
    for seed, path in enumerate(paths):
        png = io.BytesIO()
        Image.fromarray(drawing(seed)).save(png, "PNG")
        members[f"images_{part}/{path}"] = png.getvalue()
    return members


def offer_omniglot(server: Server, background: bytes, evaluation: bytes) -> dict[str, RemoteFile]:
    archives = {"images_background.zip": background, "images_evaluation.zip": evaluation}
    return {name: server.offer(name, data) for name, data in archives.items()}


def tar_of(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, data in members.items():
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def cifar_rows(fine: list[int], seed: int) -> np.ndarray[Any, Any]:
    rows = np.random.default_rng(seed).integers(0, 256, (len(fine), 3074), dtype=np.uint8)
    rows[:, 0] = 19  # the coarse label, which must not be taken for the fine one
    rows[:, 1] = fine
    return rows


def cifar_members(train: list[int], test: list[int]) -> dict[str, bytes]:
    return {
        "fine_label_names.txt": b"apple\naquarium_fish\nbaby\n",
        "coarse_label_names.txt": b"fish\n",
        "test.bin": cifar_rows(test, 1).tobytes(),
        "train.bin": cifar_rows(train, 0).tobytes(),
    }


def read(path: Path) -> tuple[list[str], list[int], list[str | None], list[np.ndarray[Any, Any]]]:
    """Class names, labels, paths and pixels of a Parquet file."""
    table = pyarrow.parquet.read_table(path)
    assert str(table.schema.field("image").type) == "struct<bytes: binary, path: string>"
    assert str(table.schema.field("label").type) == "int64"
    names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
    images = table["image"].to_pylist()
    pixels = [np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in images]
    return names, table["label"].to_pylist(), [image["path"] for image in images], pixels


def test_omniglot_becomes_parquet_with_characters_in_order(server: Server, tmp_path: Path) -> None:
    shuffled = ["B/character01/0003_01.png", "A_(x)/character02/0002_02.png", "A_(x)/character02/0002_01.png"]
    files = offer_omniglot(
        server,
        zip_of(drawings("background", [*shuffled, "A_(x)/character01/0001_01.png"])),
        zip_of(drawings("evaluation", ["C/character01/0004_01.png"])),
    )
    written = download_omniglot(tmp_path, files=files)
    assert [path.name for path in written] == ["omniglot-background.parquet", "omniglot-evaluation.parquet"]
    sums = [sum_file(path).name for path in written]
    assert names_in(tmp_path) == sorted([*files, *(path.name for path in written), *sums])

    names, labels, paths, pixels = read(written[0])
    assert names == ["A_(x)/character01", "A_(x)/character02", "B/character01"]
    assert labels == [0, 1, 1, 2]
    assert paths == ["A_(x)/character01/0001_01.png", *reversed(shuffled)]
    for image, seed in zip(pixels, [3, 2, 1, 0], strict=True):
        np.testing.assert_array_equal(image, drawing(seed))
    assert read(written[1])[:3] == (["C/character01"], [0], ["C/character01/0004_01.png"])


def test_cifar100_becomes_parquet_with_fine_labels_class_by_class(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ROW_GROUP", 2)  # so that several are written
    train, test = [2, 0, 1, 0, 2], [1, 0]
    file = server.offer("cifar-100-binary.tar.gz", tar_of(cifar_members(train, test)))
    written = download_cifar100(tmp_path, files={"cifar-100-binary.tar.gz": file})
    assert [path.name for path in written] == ["cifar100-train.parquet", "cifar100-test.parquet"]
    sums = [sum_file(path).name for path in written]
    assert names_in(tmp_path) == sorted(["cifar-100-binary.tar.gz", *(path.name for path in written), *sums])

    for path, rows, order in [
        (written[0], cifar_rows(train, 0), [1, 3, 2, 0, 4]),
        (written[1], cifar_rows(test, 1), [1, 0]),
    ]:
        names, labels, paths, pixels = read(path)
        assert names == ["apple", "aquarium_fish", "baby"]
        assert labels == rows[order, 1].tolist()
        assert paths == [None] * len(order)
        for image, index in zip(pixels, order, strict=True):
            red, green, blue = rows[index, 2:].reshape(3, 32, 32)
            np.testing.assert_array_equal(image, np.dstack([red, green, blue]))


def broken_content() -> bytes:
    """A zip whose directory is whole, with a drawing that fails its checksum."""
    data = bytearray(zip_of(drawings("background", ["A/character01/0001_01.png"])))
    data[data.find(b"0001_01.png", data.find(b"images_background/A")) + 40] ^= 0xFF
    return bytes(data)


@pytest.mark.parametrize(
    ("archive", "said"),
    [
        (lambda: b"no zip at all", "not a zip file"),
        (lambda: zip_of(drawings("background", ["A/character01/0001_01.png"]))[:-60], "not a zip file"),
        (broken_content, "."),
        (lambda: zip_of({"images_background/readme.txt": b"hello"}), "no drawings"),
        (lambda: zip_of({"images_background/A/character01/0001_01.png": bytes(10**6)}), "would take 1000000 bytes"),
        (lambda: zip_of({"../../A/character01/0001_01.png": b"climbs out"}), "no drawings"),
    ],
    ids=["nonsense", "truncated", "checksum", "no drawings", "absurd size", "climbing path"],
)
def test_a_damaged_omniglot_archive_gives_a_sentence_and_no_parquet(
    archive: Callable[[], bytes], said: str, server: Server, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"images_background.zip is damaged \(.*{said}.*: delete it") as raised:
        download_omniglot(tmp_path, files=offer_omniglot(server, archive(), b""))
    one_sentence(raised)
    assert names_in(tmp_path) == ["images_background.zip"]


def without(name: str) -> dict[str, bytes]:
    return {key: data for key, data in cifar_members([0], [0]).items() if key != name}


@pytest.mark.parametrize(
    ("archive", "said"),
    [
        (lambda: b"no tar at all", "gzip"),
        (lambda: tar_of(cifar_members([0], [0]))[:-3000], "."),
        (lambda: tar_of(without("test.bin")), "test.bin has 0 bytes"),
        (lambda: tar_of(without("fine_label_names.txt")), "labels without a name"),
        (lambda: tar_of(without("train.bin") | {"train.bin": bytes(3075)}), "3075 bytes, not a multiple of 3074"),
        (lambda: tar_of(cifar_members([3], [0])), "train.bin has labels without a name"),
        (lambda: tar_of(without("train.bin") | {"train.bin": bytes(30740)}), "would take 30740 bytes"),
    ],
    ids=["nonsense", "truncated", "no test.bin", "no names", "odd length", "label out of range", "absurd size"],
)
def test_a_damaged_cifar100_archive_gives_a_sentence_and_no_parquet(
    archive: Callable[[], bytes], said: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MOST_BYTES_OF_A_MEMBER", 20_000)
    file = server.offer("cifar-100-binary.tar.gz", archive())
    with pytest.raises(UserError, match=rf"cifar-100-binary.tar.gz is damaged \(.*{said}.*: delete it") as raised:
        download_cifar100(tmp_path, files={"cifar-100-binary.tar.gz": file})
    one_sentence(raised)
    assert names_in(tmp_path) == ["cifar-100-binary.tar.gz"]


def test_a_failing_conversion_leaves_the_old_parquet_and_no_half_of_a_new_one(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            raise OSError(28, "No space left on device")
        return Path(self.rename(target))

    (tmp_path / "cifar100-train.parquet").write_bytes(b"old")
    file = server.offer("cifar-100-binary.tar.gz", tar_of(cifar_members([0], [0])))
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match=r"cannot write .*cifar100-train.parquet: No space left"):
        download_cifar100(tmp_path, files={"cifar-100-binary.tar.gz": file})
    assert names_in(tmp_path) == ["cifar-100-binary.tar.gz", "cifar100-train.parquet"]
    assert (tmp_path / "cifar100-train.parquet").read_bytes() == b"old"


def test_every_base_set_has_its_download_and_official_files_come_over_https() -> None:
    assert [*DOWNLOADS.items()] == [("omniglot", download_omniglot), ("cifar100", download_cifar100)]
    for name, file in OFFICIAL.items():
        assert file.url.startswith("https://")
        assert file.url.endswith(f"/{name}")
        assert len(bytes.fromhex(file.sha256)) == 32
