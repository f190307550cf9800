#include "hub/kind.h"

#include "base/read_json.h"
#include "checkpoint/gguf_start.h"
#include "checkpoint/strict_json.h"
#include "hub/cache.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace nibble::hub {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kInstead = "take the model that it was made from, or its GGUF";
constexpr std::string_view kWant = "want config.json and .safetensors beside it, or a .gguf file";

// Files of weights in formats that are not read here.
struct OtherFormat {
  std::string_view ending, what;
};
constexpr OtherFormat kOtherFormats[] = {
    {"weights.npz", "an MLX model"}, {".onnx", "an ONNX model"},   {"openvino_model.xml", "an OpenVINO model"},
    {".bin", "PyTorch's pickles"},   {".pt", "PyTorch's pickles"}, {".pth", "PyTorch's pickles"},
    {".ckpt", "PyTorch's pickles"},  {".pkl", "Python's pickles"},
};

std::string_view name_in(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// model.layers.0.mlp.experts.17.gate_proj.weight, …experts.gate_up_projs.17.weight: one tensor for each expert.
bool is_split_expert(std::string_view tensor) {
  for (const std::string_view before : {".experts.", ".gate_up_projs.", ".down_projs."}) {
    const size_t at = tensor.find(before);
    if (at == tensor.npos || at + before.size() == tensor.size()) continue;
    if (std::isdigit(static_cast<unsigned char>(tensor[at + before.size()])) != 0) return true;
  }
  return false;
}

// What config.json, the names of tensors and a GGUF file's architecture say; empty: nothing that speaks against it.
std::string of_contents(const Marks& marks) {
  const Json config = read_json(marks.config);
  const auto part = [&config](const char* key) {
    return config.is_object() && config.contains(key) && config[key].is_object() ? config[key] : Json::object();
  };
  if (part("quantization").contains("bits"))
    return fmt::format("an MLX model (config.json: quantization), which is not read here: {}", kInstead);
  if (const std::string method = text_at(part("quantization_config"), "quant_method");
      !method.empty() && method != "mxfp4")
    return fmt::format("its weights are quantised by {} (config.json: quant_method), which is not read here: {}",
                       checkpoint::printable(method), kInstead);
  if (std::ranges::any_of(marks.tensors, is_split_expert))
    return fmt::format("it has a tensor for each expert (…experts.0.…), which is not read here: {}", kInstead);
  return {};
}

// The family that is not gpt-oss; empty: nothing says so.
std::string other_family(const Marks& marks) {
  const auto has = [](const std::string& path) { return path == "model_index.json"; };
  if (std::ranges::any_of(marks.files, has)) return "pipeline of diffusers";
  if (std::string type = text_at(read_json(marks.config), "model_type"); !type.empty() && !type.starts_with("gpt_oss"))
    return checkpoint::printable(type);
  return marks.architecture == "gptoss" || marks.architecture.starts_with("gpt-oss")  // Ollama's, llama.cpp's
             ? ""
             : checkpoint::printable(marks.architecture);
}

std::string of_files(const Marks& marks) {
  const auto has = [&marks](const auto& is) { return std::ranges::any_of(marks.files, is); };
  const auto named = [&](std::string_view file) {
    return has([file](const std::string& path) { return path == file; });
  };
  const bool has_weights = has([](const std::string& path) {
    return path.ends_with(".gguf") || (path.ends_with(".safetensors") && !name_in(path).starts_with("adapter_"));
  });
  if (has_weights) return {};
  if (named("adapter_config.json"))
    return "a LoRA adapter, not a model: merge it into its base model (peft: merge_and_unload, then save_pretrained) "
           "and take the result";
  for (const OtherFormat& other : kOtherFormats)
    if (has([&other](const std::string& path) { return path.ends_with(other.ending); }))
      return fmt::format("{} (*{}), which is not read here: want .safetensors (save_pretrained writes them) or .gguf",
                         other.what, other.ending);
  const bool has_tokenizer = named("tokenizer.json") || named("tokenizer_config.json");
  const bool may_become_one = !marks.config.empty() || named("config.json") || (marks.is_file && !has_tokenizer);
  return may_become_one ? ""
                        : fmt::format("{}: {}",
                                      has_tokenizer         ? "only a tokenizer"
                                      : marks.files.empty() ? "empty"
                                                            : "no model is in it",
                                      kWant);
}

}  // namespace

std::optional<OtherKind> other_kind(const std::string& name, const Marks& marks) {
  if (const std::string family = other_family(marks); !family.empty()) {
    const char* const article = std::string_view("aeiou").find(family.front()) == std::string_view::npos ? "a" : "an";
    return OtherKind{true,
                     Error(Code::kUnsupported, "only gpt-oss models run here: {} is {} {}", name, article, family)};
  }
  std::string what = of_contents(marks);
  if (what.empty()) what = of_files(marks);
  if (what.empty()) return std::nullopt;
  return OtherKind{false, Error(what.ends_with(kWant) ? Code::kIo : Code::kUnsupported, "{}: {}", name, what)};
}

std::vector<std::string> tensors_of_index(const std::string& text) {
  std::vector<std::string> names;
  const Json index = read_json(text);
  if (index.is_object() && index.contains("weight_map") && index["weight_map"].is_object())
    for (const auto& [tensor, file] : index["weight_map"].items()) names.push_back(tensor);
  return names;
}

Marks marks_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    const std::string start = start_of(path, checkpoint::kGgufStartBytes);
    return {.files = {path.filename().string()},
            .architecture = checkpoint::gguf_architecture(start).value_or(""),
            .is_file = true};
  }
  Marks marks{.config = start_of(path / "config.json", size_t{1} << 20),
              .tensors = tensors_of_index(start_of(path / "model.safetensors.index.json", size_t{64} << 20))};
  for (const fs::path& file : files_below(path, 2))
    marks.files.push_back(file.lexically_relative(path).generic_string());
  return marks;
}

}  // namespace nibble::hub
