// Any text either gives a config whose manifest can be computed, or is refused by an Error.

#include "base/error.h"
#include "model/hf_config.h"
#include "model/config.h"
#include "convert/inspect.h"
#include "convert/synth.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace {

// The part behind a newline is the generation config.
std::optional<nibble::model::ModelConfig> config_of(std::string_view text) {
  const size_t cut = std::min(text.find('\n'), text.size());
  try {
    auto config = nibble::model::parse_hf_config(text.substr(0, cut), "fuzz").config;
    if (cut < text.size()) nibble::model::apply_generation_config(text.substr(cut + 1), "fuzz", config);
    return config;
  } catch (const nibble::Error&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = config_of({reinterpret_cast<const char*>(data), size});
  if (!config) return 0;
  nibble::check(nibble::convert::numbers_of(*config).total.bytes > 0, "a valid config has weights");
  const std::string json = nibble::convert::config_json(*config);
  const auto again = nibble::model::parse_hf_config(json, "again").config;
  nibble::check(again.dims == config->dims && again.layer_kinds == config->layer_kinds && again.rope == config->rope,
                "a config survives its own JSON");
  return 0;
}
