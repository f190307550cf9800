#pragma once
// Where models are kept and come from, as Hugging Face's variables say (app/hub_options.cpp reads them).

#include <filesystem>
#include <string>

namespace nibble::hub {

struct Settings {
  std::filesystem::path cache;                      // HF_HUB_CACHE, or hub/ of HF_HOME
  std::filesystem::path models = "models";          // looked into before the cache
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT, without a / at its end
  std::string token;                                // HF_TOKEN
  std::filesystem::path token_file;                 // read where there is no token; may be absent
  std::filesystem::path certificates;               // a PEM file instead of the system's; may be empty
  bool offline = false;                             // HF_HUB_OFFLINE
};

}  // namespace nibble::hub
