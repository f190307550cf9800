#include "backend/kv_dtype.h"

#include "base/error.h"

namespace nibble::backend {

void require_taken(const KvType& type, BackendKind backend) {
  if (type.on.has(backend)) return;
  throw Error(Code::kUnsupported, "--kv-cache-dtype {}: no kernels of --backend {} take it", type.word,
              name_of(backend));
}

}  // namespace nibble::backend
