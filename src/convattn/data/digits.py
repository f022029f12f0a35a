"""Handwritten digits that scikit-learn ships: real images, no download, trained on in seconds."""

import numpy as np
import torch

from convattn.data.dataset import ImageDataset, ImageSplit
from convattn.errors import MissingDependencyError
from convattn.records import DataRecord

TEST_IMAGES = 360
SPLIT_SEED = 0


def load_digits() -> ImageDataset:
    """Loads the 1797 grey 8 x 8 digits of the UCI test set, with a fixed split: 1437 to train, 360 to test.

    The split is stratified by class (`sklearn.model_selection.train_test_split`, ``random_state=0``). Grey levels 0
    to 16 are scaled to 0 to 255 by ``round(255 · level / 16)``, which loses nothing. The mean and the standard
    deviation are those of the training split.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
    1998.

    Returns:
        The data set, on the CPU.

    Raises:
        MissingDependencyError: scikit-learn is not installed.

    Example:
        >>> digits = load_digits()
        >>> digits.image_shape, len(digits.train), len(digits.test), digits.num_classes
        ((1, 8, 8), 1437, 360, 10)
    """
    try:
        import sklearn
        from sklearn import datasets, model_selection
    except ImportError:
        raise MissingDependencyError("scikit-learn", "train") from None
    levels, labels = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(levels).mul(255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    classes = torch.from_numpy(labels).to(torch.int64)
    train_rows, test_rows = model_selection.train_test_split(
        np.arange(len(classes)), test_size=TEST_IMAGES, random_state=SPLIT_SEED, stratify=labels
    )
    train, test = (ImageSplit(images[rows], classes[rows]) for rows in (train_rows, test_rows))
    scaled = train.images.double() / 255
    record = DataRecord(
        name="digits",
        source=f"scikit-learn {sklearn.__version__}, datasets.load_digits",
        hashes={"train": train.sha256(), "test": test.sha256()},
        counts={"train": len(train), "test": len(test)},
        split=f"stratified by class, train_test_split(test_size={TEST_IMAGES}, random_state={SPLIT_SEED})",
    )
    return ImageDataset(train, test, 10, (float(scaled.mean()),), (float(scaled.std()),), record)
