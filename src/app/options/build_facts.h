#pragma once
// How this program was built, for results to name.

#include <string_view>

namespace nibble::app {

struct BuildFacts {
  std::string_view commit;    // of the checkout; "unknown" outside one
  std::string_view type;      // Release
  std::string_view compiler;  // GNU 12.2.0
  std::string_view flags;     // of C++, the type's included
  std::string_view sanitizers;
  std::string_view cuda;                // the toolkit's version; empty: built without
  std::string_view cuda_architectures;  // CMake's list
};
[[nodiscard]] BuildFacts build_facts();

}  // namespace nibble::app
