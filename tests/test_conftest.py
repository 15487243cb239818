"""The list of system packages and the marker that reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
HERE = Path(__file__).parent


def test_every_listed_package_has_a_program_and_the_reverse(request):
    lines = (HERE / "system-packages.txt").read_text().splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    (conftest,) = (one for one in request.config.pluginmanager.get_plugins() if hasattr(one, "PROGRAMS"))
    assert listed == set(conftest.PROGRAMS)


@pytest.mark.parametrize(
    ("required", "outcome"), [("", {"skipped": 1, "passed": 1}), ("1", {"errors": 1, "passed": 1})]
)
def test_a_missing_package_skips_or_fails_with_its_name(pytester, monkeypatch, required, outcome):
    text = (HERE / "conftest.py").read_text().replace('pytest_plugins = ["sshd", "command", "emulator"]', "")
    pytester.makeconftest(text + "\nPROGRAMS.update(nothing='no-such-program', everything='sh')\n")
    pytester.makeini("[pytest]\nmarkers = system(package): x\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.system("nothing")
        def test_without(): pass

        @pytest.mark.system("everything")
        def test_with(): pass
        """
    )
    monkeypatch.setenv("EDGEKIT_REQUIRE_SYSTEM", required)
    result = pytester.runpytest("-rs", "-p", "no:cacheprovider")
    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines(["*needs Debian package nothing*"])
