#!/usr/bin/env bash
# Makes a Windows machine of a container with Wine: a drive, Python, stand-ins of Visual Studio and CUDA, and the bridge to the
# compiler behind them. /windows has Python313, /exe the programs of the test.
set -euo pipefail
drive=$WINEPREFIX/drive_c
wineboot --init
wineserver --wait
cp -r /windows/Python313 "$drive/"
mkdir -p "$drive/standins"
studio="$drive/Program Files/Microsoft Visual Studio/2022/BuildTools"
for toolset in 14.39.33519 14.44.35207; do
  bin="$studio/VC/Tools/MSVC/$toolset/bin/Hostx64/x64"
  mkdir -p "$bin"
  cp /exe/standin.exe "$bin/cl.exe"
  cp /exe/standin.exe "$bin/link.exe"
done
mkdir -p "$studio/VC/Auxiliary/Build"
# As the real one: the equal sign separates arguments of batch files.
sed 's/$/\r/' >"$studio/VC/Auxiliary/Build/vcvarsall.bat" <<'BAT'
@echo off
if not "%1"=="x64" exit /b 2
set "VCToolsVersion=14.44.35207"
if "%2"=="-vcvars_ver" set "VCToolsVersion=%3"
set "VCINSTALLDIR=C:\Program Files\Microsoft Visual Studio\2022\BuildTools\VC\"
set "VCToolsInstallDir=%VCINSTALLDIR%Tools\MSVC\%VCToolsVersion%\"
if not exist "%VCToolsInstallDir%" exit /b 3
set "INCLUDE=C:\standins\include"
set "LIB=C:\standins\lib"
set "VSCMD_ARG_TGT_ARCH=x64"
set "PATH=%VCToolsInstallDir%bin\Hostx64\x64;%PATH%"
echo %VCToolsVersion%>>C:\standins\vcvars.log
BAT
mkdir -p "$drive/standins/include" "$drive/standins/lib"
installer="$drive/Program Files (x86)/Microsoft Visual Studio/Installer"
mkdir -p "$installer"
cp /exe/standin.exe "$installer/vswhere.exe"
printf 'C:\\Program Files\\Microsoft Visual Studio\\2022\\BuildTools\r\n' >"$installer/vswhere.txt"
/exe/bridge "$WINEPREFIX" "$drive/standins/address" >/dev/null 2>&1 &
while [ ! -s "$drive/standins/address" ]; do sleep 0.05; done
