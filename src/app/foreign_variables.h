#pragma once
// The environment variables of vLLM and FlashInfer.

#include <map>
#include <string>
#include <vector>

namespace nibble::app {

// What one of them means here.
struct ForeignSetting {
  std::string variable, flag, value;
};

// Of all variables of a process. Those that are set and mean nothing here get a line of `notes` each. Throws
// Error(kInvalidRequest) for one that asks for what is not there, and for a value that it cannot have.
[[nodiscard]] std::vector<ForeignSetting> read_foreign_variables(const std::map<std::string, std::string>& environment,
                                                                 std::vector<std::string>& notes);

}  // namespace nibble::app
