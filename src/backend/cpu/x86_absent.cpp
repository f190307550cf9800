// A build for an architecture without AVX2, AVX-512 and AMX.
#include "backend/cpu/kernels.h"

namespace nibble::backend::cpu {

Kernels with_avx2_floats(Kernels portable) { return portable; }
Kernels with_avx2(Kernels portable) { return portable; }
Kernels with_avx_vnni(Kernels portable) { return portable; }
Kernels with_avx512(Kernels portable) { return portable; }
Kernels with_amx(Kernels kernels) { return kernels; }

}  // namespace nibble::backend::cpu
