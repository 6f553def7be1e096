#!/usr/bin/env bash
# The codecs' tests on an emulated aarch64 processor (make aarch64). A cross compiler builds the wheel, and Debian's Python for arm64
# runs it under qemu-user. All of it lies in build/aarch64; nothing is installed. How fast the kernels are cannot be seen there.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
at=$PWD/build/aarch64

skip() {
  echo "aarch64: skipped: $1"
  exit 0
}

command -v aarch64-linux-gnu-g++ >/dev/null || skip "no cross compiler (Debian: apt-get install g++-aarch64-linux-gnu)"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || skip "no emulator (Debian: apt-get install qemu-user-static)"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "the emulated Python is Debian's, and here is no apt-get"

# apt-get for another processor, with lists and packages of its own.
arm64() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o Debug::NoLocking=1 \
    -o Dir::State="$at/apt" -o Dir::State::status=/dev/null -o Dir::Cache="$at/apt" "$@"
}

if [ ! -e "$at/root/.ready" ]; then
  rm -rf "$at/root" && mkdir -p "$at/apt/lists/partial" "$at/apt/archives/partial" "$at/root"
  arm64 update && arm64 install --yes --no-install-recommends --download-only python3 libpython3-dev libstdc++6 >"$at/apt/log" 2>&1 ||
    skip "this system's package sources have no Python for arm64 (build/aarch64/apt/log)"
  for package in "$at"/apt/archives/*.deb; do dpkg-deb --extract "$package" "$at/root"; done
  rm "$at"/apt/archives/*.deb
  touch "$at/root/.ready"
fi

# As sys.executable, so that tests can start it too.
cat >"$at/python" <<END
#!/bin/sh
exec "$qemu" -0 "$at/python" -L "$at/root" "$at/root/usr/bin/python3" "\$@"
END
chmod +x "$at/python"
version=$("$at/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
digits=${version/./}
[ "$version" = "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" ] || skip "it needs Python $version, Debian's, here too"

pip() { "$python" -m pip --quiet --disable-pip-version-check "$@"; }
platforms=(--platform linux_aarch64)
for glibc in 17 24 26 27 28 31 34; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
rm -rf "$at/wheels" "$at/site"
CXX=aarch64-linux-gnu-g++ _PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=".cpython-$digits-aarch64-linux-gnu.so" \
  CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DPython_INCLUDE_DIR=$at/root/usr/include/python$version \
  -DCMAKE_CXX_FLAGS=-isystem\ $at/root/usr/include" \
  pip wheel --no-deps --wheel-dir "$at/wheels" .
pip install --target "$at/site" "${platforms[@]}" --only-binary :all: --python-version "$version" --constraint constraints.txt \
  numpy scipy pytest pytest-timeout hypothesis
pip install --target "$at/site" "${platforms[@]}" --only-binary :all: --python-version "$version" --no-deps "$at"/wheels/*.whl

export PYTHONPATH="$at/site" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
"$at/python" -c 'from paceline.codecs import native; assert native.isa() == "neon", native.isa(); print("aarch64:", native.__file__)'
# Those that need no torch.
mapfile -t tests < <(grep -L '^import torch' tests/codecs/test_*.py)
"$at/python" -m pytest -q -p no:cacheprovider "${tests[@]}" tests/training/optimizers/test_native_levels.py \
  tests/slimming/methods/test_sparse_convolution_native.py -k native
