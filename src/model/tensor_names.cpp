#include "model/tensor_names.h"

#include "base/error.h"
#include "checkpoint/strict_json.h"

#include <algorithm>
#include <cstddef>
#include <unordered_set>

namespace nibble::model {
namespace {

constexpr size_t kMostListed = 5;  // names in one message

// Those of `names` that `others` lacks, each once.
std::vector<std::string> not_in(const std::vector<std::string_view>& others,
                                const std::vector<std::string_view>& names) {
  std::unordered_set<std::string_view> known(others.begin(), others.end());
  std::vector<std::string> result;
  for (const std::string_view name : names) {
    if (known.insert(name).second) result.push_back(checkpoint::printable(name));
  }
  return result;
}

std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMostListed);
  return fmt::format("{}: {}{}", names.size() == 1 ? "1 tensor" : fmt::format("{} tensors", names.size()),
                     fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < names.size() ? ", …" : "");
}

}  // namespace

void require_same_names(const std::vector<std::string_view>& wanted, const std::vector<std::string_view>& found,
                        std::string_view where) {
  const std::vector<std::string> missing = not_in(found, wanted), extra = not_in(wanted, found);
  if (!missing.empty()) throw Error(Code::kCorrupt, "{} lacks {}", where, listed(missing));
  if (!extra.empty()) {
    throw Error(Code::kCorrupt, "{} has what this model does not: {}", where, listed(extra));
  }
}

}  // namespace nibble::model
