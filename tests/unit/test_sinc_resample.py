"""Needs torch: the resampler computes what torchaudio's does."""

import numpy as np
import pytest
import torch

from deployments.families.media_headers import resampled_length
from deployments.upstream.sinc_resample import Resample
from policies.limits import resample_kernel

# torchaudio 2.11's own answers for the ramp 1/8, 2/8, ... 8/8.
RECORDED = {
    8_000: "0.12472624331712723 0.19264480471611023 0.25027137994766235 0.3107490539550781 "
    "0.3748766779899597 0.44028449058532715 0.49928799271583557 0.5521353483200073 "
    "0.6270174980163574 0.7147777080535889 0.7465493679046631 0.752189040184021 "
    "0.8796346783638 1.0744974613189697 0.9946704506874084 0.5111411809921265",
    44_100: "0.1280146837234497 0.44801703095436096 0.870236337184906",
}


@pytest.mark.parametrize("rate", RECORDED)
def test_recorded_answers(rate: int) -> None:
    """The answers are those that torchaudio gave, to the last digit or one beside it."""
    ramp = torch.arange(1, 9, dtype=torch.float32) / 8
    expected = np.array([float(word) for word in RECORDED[rate].split()], dtype=np.float32)
    np.testing.assert_allclose(Resample(rate, 16_000)(ramp).numpy(), expected, rtol=3e-7)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000])
def test_equal_to_torchaudio(rate: int) -> None:
    """Where torchaudio is installed its samples are the same bits."""
    torchaudio = pytest.importorskip("torchaudio", reason="torchaudio has no build for this torch")
    wave = torch.randn(2, 5_003, generator=torch.Generator().manual_seed(1))
    assert torch.equal(Resample(rate, 16_000)(wave), torchaudio.transforms.Resample(rate, 16_000)(wave))


@pytest.mark.parametrize("rate", [4_000, 8_000, 11_025, 12_000, 22_050, 44_100, 48_000, 192_000])
def test_length_and_cost_are_foretold(rate: int) -> None:
    """The length of the result and the size of the filters are what the pure functions say."""
    resample = Resample(rate, 16_000)
    assert resample.kernel.numel() == resample_kernel(rate)
    for samples in (1, 2, 3, 100, 440, 441, 442, 16_001):
        assert resample(torch.zeros(samples)).shape[-1] == resampled_length(samples, rate)


def test_length_of_long_clips() -> None:
    """Lengths above 2**24 are rounded as torchaudio rounds them (recorded), which can lose one sample."""
    recorded = {
        (2**24 + 1, 22_050): 12_173_944,
        (20_000_001, 48_000): 6_666_667,
        (28_800_001, 48_000): 9_600_000,
    }
    assert {case: resampled_length(*case) for case in recorded} == recorded
