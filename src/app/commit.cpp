#include "app/commit.h"

namespace nibble::app {

std::string_view commit() { return NIBBLE_COMMIT; }

}  // namespace nibble::app
