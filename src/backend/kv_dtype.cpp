#include "backend/kv_dtype.h"

#include "base/error.h"

#include <string>

namespace nibble::backend {

void require_taken(const KvType& type, BackendKind backend) {
  if (type.on.has(backend)) return;
  throw Error(Code::kUnsupported, "--kv-cache-dtype {}: no kernels of --backend {} take it", type.word,
              name_of(backend));
}

void refuse_row(const KvType& type, int64_t values) {
  throw Error(Code::kUnsupported, "--kv-cache-dtype {}: want heads of whole {}, found a head_dim of {}", type.word,
              type.block > 1 ? "blocks of " + std::to_string(type.block) : "bytes", values);
}

}  // namespace nibble::backend
