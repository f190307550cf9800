// What a build for another architecture lacks: kernels and loops of its instructions.
#include "backend/cpu/kernels.h"
#include "backend/cpu/measure.h"

namespace nibble::backend::cpu {

#if !defined(__x86_64__)
Kernels with_avx2_floats(Kernels portable) { return portable; }
Kernels with_avx2(Kernels portable) { return portable; }
Kernels with_avx_vnni(Kernels portable) { return portable; }
Kernels with_avx512(Kernels portable) { return portable; }
Kernels with_amx(Kernels kernels) { return kernels; }
#endif

#if !defined(__aarch64__)
Kernels with_dotprod(Kernels portable) { return portable; }
Kernels with_i8mm(Kernels portable) { return portable; }
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
std::vector<PeakLoop> matrix_loops() { return {}; }  // float alone is measured
#endif

}  // namespace nibble::backend::cpu
