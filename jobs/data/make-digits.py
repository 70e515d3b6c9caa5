#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
#
# make-digits.py - makes digits.h5, the handwritten digits that ship with Lockstep, from scikit-learn's copy of the UCI
# test set. Needs scikit-learn and h5py:
#
#   python3 -m venv venv && venv/bin/pip install scikit-learn h5py && venv/bin/python make-digits.py digits.h5
#
# The same versions give the same bytes. Attribution: DIGITS.md beside this file.
import sys

import h5py
import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
values = digits.images  # [1797, 8, 8], 0 .. 16
assert values.shape == (1797, 8, 8) and values.min() == 0 and values.max() == 16
images = np.rint(values * 255.0 / 16.0).astype(np.uint8).reshape(1797, 1, 8, 8)
labels = digits.target.astype("<i8")

with h5py.File(sys.argv[1] if len(sys.argv) > 1 else "digits.h5", "w", libver=("earliest", "v108")) as f:
    for name, data in (("images", images), ("labels", labels)):
        f.create_dataset(name, data=data, track_times=False)
    f["images"].attrs["about"] = np.bytes_("8x8 grey images of handwritten digits, [N, 1, 8, 8]; round(value * 255 / 16)")
    f["labels"].attrs["about"] = np.bytes_("the digit, 0 to 9")
