# The toolchain file of the preset spark-cross: the CUDA product for a DGX Spark, compiled on an x86-64 machine. The program is
# Debian's cross compiler's, the kernels nvcc's; CUDA's runtime for arm64 comes from PyPI (tools/cudart_arm.sh).
include(${CMAKE_CURRENT_LIST_DIR}/arm.cmake)
set(cudart ${CMAKE_CURRENT_LIST_DIR}/../build/cudart-arm64/nvidia/cu13/lib)
set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
# The headers are the same for both machines; of libraries, the linker passes over those of the other.
set(CMAKE_CUDA_FLAGS_INIT "-target-dir x86_64-linux -L${cudart}")
set(CUDA_cudart_static_LIBRARY ${cudart}/libcudart_static.a CACHE FILEPATH "")
