import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from tests.lab.parquet_cases import FILES, WRONG_TABLES, good, png, table, write

from convattn.data import load_cifar10
from convattn.errors import DataError
from convattn.sealed import file_sha256

REAL_COPY = Path(__file__).parents[3] / "shared" / "data" / "cifar10"


def test_pixels_and_labels_come_out_as_they_went_in(tmp_path):
    dataset = load_cifar10(write(tmp_path, good(5), good(2, seed=50)))
    with Image.open(io.BytesIO(png(seed=3))) as image:
        expected = torch.from_numpy(np.array(image)).movedim(-1, 0)
    assert torch.equal(dataset.train.images[3], expected)
    assert dataset.train.labels.tolist() == [0, 3, 6, 9, 2]
    assert (dataset.image_shape, dataset.num_classes) == ((3, 32, 32), 10)


def test_record_names_the_copy_by_its_hashes(tmp_path):
    record = load_cifar10(write(tmp_path, good(5), good(2, seed=50))).record
    assert record.hashes == {name: file_sha256(tmp_path / name) for name in FILES}
    assert record.counts == {"train": 5, "test": 2}
    assert record.hashes[FILES[0]].startswith(record.name.split()[-1].rstrip(")"))
    assert str(tmp_path) not in record.to_json()


def test_grey_image_becomes_three_equal_channels(tmp_path):
    dataset = load_cifar10(write(tmp_path, table([png(mode="L")], [0]), good(1)))
    red, green, blue = dataset.train.images[0]
    assert torch.equal(red, green)
    assert torch.equal(green, blue)


@pytest.mark.parametrize("name", WRONG_TABLES)
def test_wrong_content_is_refused_with_the_file_and_the_reason(tmp_path, name):
    content, message = WRONG_TABLES[name]
    write(tmp_path, good(1), content)
    with pytest.raises(DataError, match=message) as caught:
        load_cifar10(tmp_path)
    said = str(caught.value)
    assert str(tmp_path / FILES[1]) in said or ", test split: " in said


def test_missing_folder_and_missing_file(tmp_path):
    with pytest.raises(DataError, match="CIFAR-10: there is no folder"):
        load_cifar10(tmp_path / "absent")
    parquet.write_table(good(1), tmp_path / FILES[0])
    with pytest.raises(
        DataError, match=f"has no file {FILES[1]}; expected {FILES[0]} and {FILES[1]}"
    ):
        load_cifar10(tmp_path)


def test_file_that_is_not_parquet(tmp_path):
    write(tmp_path, good(1), good(1))
    for content in (
        b"PAR1 but not really",
        (tmp_path / FILES[1]).read_bytes().replace(b"label", b"l\xffbel"),
    ):
        (tmp_path / FILES[1]).write_bytes(content)
        with pytest.raises(DataError, match="not a readable parquet file"):
            load_cifar10(tmp_path)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return write(folder, good(3), good(2))


def test_hub_copy_has_its_revision_recorded(source, monkeypatch):
    snapshot = source / "snapshots" / "0123abcd"
    shutil.copytree(source, snapshot / "plain_text")

    def download(repository, file, *, repo_type):
        assert (repository, repo_type) == ("uoft-cs/cifar10", "dataset")
        return str(snapshot / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    dataset = load_cifar10()
    assert dataset.record.source == "Hugging Face Hub, uoft-cs/cifar10, revision 0123abcd"
    assert dataset.record.hashes == load_cifar10(source).record.hashes


def test_without_connection_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        DataError, match=f"give a local folder that holds {FILES[0]} and {FILES[1]} instead"
    ):
        load_cifar10()


@pytest.mark.slow
@pytest.mark.skipif(
    not REAL_COPY.is_dir(), reason="needs a local copy of CIFAR-10 beside the repository"
)
def test_real_copy_has_all_images_and_the_known_mean():
    dataset = load_cifar10(REAL_COPY)
    assert dataset.record.counts == {"train": 50_000, "test": 10_000}
    assert dataset.train.labels.bincount().tolist() == [5000] * 10
    means = (dataset.train.images.double() / 255).mean(dim=(0, 2, 3))
    assert (means - torch.tensor(dataset.mean, dtype=torch.float64)).abs().max() < 5e-4
