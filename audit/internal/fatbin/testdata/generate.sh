#!/bin/sh
# Makes the binary files of this folder from axpy.cu and fill.hip. They are checked in,
# because no machine has all of these compilers: nvcc 11.8, 12.4 and 13.0, clang 17, 19
# and 22 with lld, and objects change with every toolkit. golden_test.go says what is in
# them, and what that was compared with.
#
#   CUDA118=... CUDA124=... CUDA130=... LLVM17=... LLVM19=... LLVM22=... sh generate.sh
#
# Each variable is a folder with bin/nvcc or bin/clang. Run it in a copy of this folder:
# nvcc writes the names of temporary files into host objects.
set -eu
# No absolute path may end in the files: nvcc records the source as it is given.
export TMPDIR=.
flags="-allow-unsupported-compiler -Xcompiler -fno-ident,-fPIC,-g0"
nvcc118() { "$CUDA118/bin/nvcc" $flags "$@"; }
nvcc124() { "$CUDA124/bin/nvcc" $flags "$@"; }
nvcc130() { "$CUDA130/bin/nvcc" $flags "$@"; }

nvcc118 -c axpy.cu -o nvcc118.o -gencode arch=compute_60,code=sm_60 -gencode arch=compute_80,code='[sm_80,compute_80]'
nvcc118 -dc axpy.cu -o nvcc118-lto.o -gencode arch=compute_80,code=lto_80
# Relocatable code with a device link step, as separable compilation makes it.
nvcc124 -dc axpy.cu -o rdc.o -gencode arch=compute_80,code='[sm_80,compute_80]'
nvcc124 -dlink -cudadevrt none rdc.o -o dlink.o -gencode arch=compute_80,code=sm_80
g++ -shared -s -nostdlib rdc.o dlink.o -o nvcc124.so
rm -f rdc.o dlink.o
nvcc124 -c -Xfatbin -compress-all -Xfatbin -ident=axpy.cu axpy.cu -o nvcc124-90a.o -gencode arch=compute_90a,code='[sm_90a,compute_90a]'
nvcc130 -c axpy.cu -o nvcc130.o -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100f,code=sm_100f \
  -gencode arch=compute_120,code=compute_120
nvcc130 -fatbin --compress-mode=size axpy.cu -o nvcc130-size.fatbin -gencode arch=compute_120f,code='[sm_120f,compute_120f]'
nvcc130 -fatbin --compress-mode=speed -maxrregcount=32 axpy.cu -o nvcc130-speed.fatbin -gencode arch=compute_80,code='[sm_80,compute_80]'
nvcc130 -cubin -arch=sm_100f axpy.cu -o nvcc130-100f.cubin
nvcc130 -cubin -arch=sm_90a axpy.cu -o nvcc130-90a.cubin

# A static archive with GNU names, one longer than its field.
nvcc130 -dc axpy.cu -o axpy.o -gencode arch=compute_75,code=sm_75 -gencode arch=compute_90,code='[sm_90,compute_90]'
nvcc130 -c axpy.cu -o a_longer_name_of_a_member.o -gencode arch=compute_80,code=compute_80
rm -f nvcc130.a
ar qcD nvcc130.a axpy.o a_longer_name_of_a_member.o

# nvcc makes Windows files on Windows only. The container is the same, so it is put into
# an object and a DLL by hand, with the names and the wrapper that nvcc uses there.
cat > dll.s <<'ASM'
	.section .nv_fatb,"dr"
	.p2align 3
image:
	.incbin "nvcc130-speed.fatbin"
	.p2align 3
linked:
	.incbin "nvcc130-size.fatbin"
	.section .nvFatBi,"dw"
	.p2align 3
	.long 0x466243b1, 1
	.quad image, 0
	.long 0x466243b1, 2
	.quad linked, 0
	.section .nvHRKI,"dr"
	.byte 0
ASM
"$LLVM19/bin/clang" --target=x86_64-pc-windows-msvc -c dll.s -o windows.obj
"$LLVM19/bin/lld-link" /dll /noentry /nodefaultlib /brepro /out:windows.dll windows.obj
rm -f windows.lib dll.s axpy.o a_longer_name_of_a_member.o

archs="--offload-arch=gfx906 --offload-arch=gfx90a:xnack+ --offload-arch=gfx90a:xnack- --offload-arch=gfx1100"
hip="-x hip -nogpuinc -nogpulib -O2 -g0 -fno-ident"
"$LLVM17/bin/clang++" $hip --offload-arch=gfx90a:sramecc+:xnack- --offload-arch=gfx1100 -c fill.hip -o clang17.o
"$LLVM19/bin/clang++" $hip $archs --offload-compress -c fill.hip -o clang19.o
"$LLVM19/bin/clang++" $hip $archs -fgpu-rdc -c fill.hip -o clang19-rdc.o
"$LLVM22/bin/clang++" $hip --no-offload-new-driver $archs --offload-arch=gfx9-generic --offload-arch=gfx9-4-generic \
  --offload-compress -c fill.hip -o clang22.o
