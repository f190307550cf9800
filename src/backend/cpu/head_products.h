#pragma once
// Products of a head that the host runs (backend/draft_head.h), by this backend's kernels.

#include "backend/activations.h"
#include "backend/cpu/kernels.h"
#include "backend/draft_head.h"
#include "base/thread_pool.h"

#include <memory>

namespace nibble::backend::cpu {

// kInt8: the head's matrices are held in MXFP4, as copies, and multiplied by activations in int8, where their columns
// are whole blocks: a guess is verified, so it may be rounded for its speed. Else as they are, in floats. Kernels, pool
// and the head's bytes outlive it.
[[nodiscard]] std::unique_ptr<HeadProducts> make_head_products(const HeadWeights& head, const Kernels& kernels,
                                                               Activations activations, ThreadPool& pool);

}  // namespace nibble::backend::cpu
