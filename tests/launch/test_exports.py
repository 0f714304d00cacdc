"""Programs that earlier versions exported (tests/exports) run, and give the same bits."""

import pytest

from jobs import ROOT, start

VERSIONS = sorted({path.name.partition("-")[0] for path in (ROOT / "tests/exports").glob("*.tar.xz")})
WITH = {"default": {}, "checked": {"MPIXLA_CHECK": "1"}, "through-mpi": {"MPIXLA_LOCAL": "0"}}


@pytest.mark.parametrize("environment", WITH.values(), ids=WITH)
@pytest.mark.parametrize("version", VERSIONS)
def test_programs_of_earlier_versions_give_the_same_bits(version, environment, tmp_path):
    done = start(2, ROOT / "tests/exports/run.py", version, timeout=400, cwd=tmp_path, **environment)
    assert done.stdout.splitlines() == ["194 programs ran"], done.stdout
