#include "app/options/build_facts.h"

namespace nibble::app {

BuildFacts build_facts() {
  return {.commit = NIBBLE_COMMIT,
          .type = NIBBLE_BUILD_TYPE,
          .compiler = NIBBLE_COMPILER,
          .flags = NIBBLE_CXX_FLAGS,
          .sanitizers = NIBBLE_SANITIZERS,
          .cuda = NIBBLE_CUDA_VERSION,
          .cuda_architectures = NIBBLE_CUDA_ARCHITECTURES};
}

}  // namespace nibble::app
