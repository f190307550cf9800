#include "backend/kv_dtype.h"

#include "base/error.h"

namespace nibble::backend {

void require_taken(const KvType& type, KvTaker taker) {
  if (takes(taker, type)) return;
  const std::string_view backend = taker == KvTaker::kCpu ? "cpu" : taker == KvTaker::kCuda ? "cuda" : "reference";
  throw Error(Code::kUnsupported, "--kv-cache-dtype {}: no kernels of --backend {} take it", type.word, backend);
}

}  // namespace nibble::backend
