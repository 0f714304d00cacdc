"""Jobs on two hosts, with TCP between them."""

MAIN = "import runpy; runpy.run_module('mpixla', run_name='__main__', alter_sys=True)\n"


def test_selftest(hosts_job):
    lines = hosts_job(2, MAIN, "test").stdout.splitlines()
    assert lines[-1].endswith("checks passed on 2 ranks."), lines
