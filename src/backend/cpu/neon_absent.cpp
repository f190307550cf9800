// A build for an architecture without SDOT and SMMLA.
#include "backend/cpu/kernels.h"

namespace nibble::backend::cpu {

Kernels with_dotprod(Kernels portable) { return portable; }
Kernels with_i8mm(Kernels portable) { return portable; }

}  // namespace nibble::backend::cpu
