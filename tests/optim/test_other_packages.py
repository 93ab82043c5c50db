"""Optimizers of other packages: which of them preinitialize() takes; what it takes trains the same, to the bit."""

import importlib.util
from pathlib import Path

import pytest

from tools import preinitialized

PAGE = Path(__file__).parents[2] / "docs" / "preinitialize.md"
TAKEN = {
    "pytorch_optimizer": """
        ADOPT APOLLO AdEMAMix AdaBelief AdaBound AdaDelta AdaFactor AdaGO AdaMax AdaMod AdaMuon AdaNorm AdaPNM
        AdaSmooth AdaTAM Adai Adalite Adam AdamC AdamG AdamP AdamS AdamW AdamWSN AggMo Aida Amos Ano ApolloDQN
        AvaGrad CAME DAdaptAdaGrad DAdaptAdam DAdaptLion DiffGrad DualAdam EXAdam FAdam FTRL Fira FlashAdamW Fromage
        GaLore Grams Kate LARS LaProp Lamb Lion MARS MSVAG Muon MuonClip NAdam NorMuon PAdam PID PNM Prodigy QHAdam
        QHM RAdam RMSprop ROSE Ranger SCION SCIONLight SGD SGDP SGDW SM3 SWATS ScheduleFreeAdamW ScheduleFreeRAdam
        ScheduleFreeSGD Shampoo SignSGD SimplifiedAdEMAMix StableAdamW Tiger
    """,
    "schedulefree": """
        AdamWScheduleFree AdamWScheduleFreePaper RAdamScheduleFree SGDScheduleFree
    """,
    "optimi": """
        Adam AdamW Lion RAdam Ranger SGD StableAdamW
    """,
    "heavyball": "",  # whose steps note what they did in attributes of the optimizer
}


@pytest.mark.parametrize("package", TAKEN)
def test_taken_and_the_same_training_or_refused(package):
    if importlib.util.find_spec(package) is None:  # heavyball has no version for Python 3.10
        return
    outcomes = preinitialized.class_outcomes(package)
    assert [name for name, why in outcomes.items() if why == ""] == TAKEN[package].split()


def test_the_table_of_the_page():
    """Its rows of packages that are not installed here were made where they are."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert not set(preinitialized.rows()) - set(rows)
