#pragma once
// Holds the names in a checkpoint against those that the model has.

#include <string>
#include <string_view>
#include <vector>

namespace nibble::model {

// Throws Error(kCorrupt) naming `where` and some of the tensors that are missing, else of those that are not known. A
// wanted name may occur more than once.
void require_same_names(const std::vector<std::string_view>& wanted, const std::vector<std::string_view>& found,
                        std::string_view where);

}  // namespace nibble::model
