# The tarball and the wheel.
tar -C /opt -xf "$(ls /packages/ferroce-*-x86_64-linux-gnu.tar.gz)"
ferroce=$(echo /opt/ferroce-*/bin/ferroce)
$ferroce --version
has_fr0 "$ferroce" run -- || fail "no device from the tarball"
pingpong "$ferroce" run --
if [ "$SWITCHES" = yes ]; then
    "$ferroce" system on
    has_fr0 || fail "no device after system on from the tarball"
    "$ferroce" system off
fi
as_user "$ferroce" stop --force

if ! python3 -c 'import sys, venv, ensurepip, pytest; assert sys.version_info >= (3, 8)' 2>/dev/null; then
    echo "NO WHEEL: Python 3.8, venv and pytest are not all in this root"
    exit 0
fi
cd /home/user
as_user python3 -m venv --system-site-packages venv
as_user venv/bin/pip install --quiet --no-index /packages/ferroce-*.whl
has_fr0 venv/bin/ferroce run -- || fail "no device from the wheel"
as_user venv/bin/python -m ferroce --version
cat >test_devices.py <<'PYTHON'
import subprocess

import ferroce


def test_devices():
    assert b"fr0" in subprocess.run(["ibv_devices"], stdout=subprocess.PIPE, check=True).stdout


def test_run():
    assert b"fr0" in ferroce.run(["ibv_devices"], stdout=subprocess.PIPE, check=True).stdout
PYTHON
as_user venv/bin/python -m pytest -p no:cacheprovider --ferroce test_devices.py >/tmp/pytest.log 2>&1 ||
    { cat /tmp/pytest.log; fail "pytest --ferroce"; }
grep -q "2 passed" /tmp/pytest.log || { cat /tmp/pytest.log; fail "pytest --ferroce prints no count"; }
grep -q "tests run on ferroce" /tmp/pytest.log || fail "pytest has no header of the plugin"
as_user venv/bin/python -m pytest -p no:cacheprovider test_devices.py >/tmp/pytest.log 2>&1 && fail "a test passed without ferroce"
grep -q "1 failed, 1 passed" /tmp/pytest.log || { cat /tmp/pytest.log; fail "pytest without --ferroce"; }
as_user venv/bin/pip uninstall --quiet --yes ferroce
[ ! -e venv/bin/ferroce ] || fail "the wheel leaves its program"
