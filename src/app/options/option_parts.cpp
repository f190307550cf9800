#include "app/options/option_parts.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <type_traits>

namespace nibble::app {

Flag add_words(Flags flags, const std::string& name, const Words& words, const std::string& help) {
  const auto take = [words, name](const std::string& found) {
    const auto it = std::ranges::find(words.names, found);
    if (it == words.names.end())
      refuse_value(name.substr(name.rfind(',') + 1),
                   fmt::format("want {}, found {}", fmt::join(words.names, " or "), found));
    words.take(static_cast<size_t>(it - words.names.begin()));
  };
  return flags.take(name, take, help).type(fmt::format("{}", fmt::join(words.names, "|"))).usual(words.usual);
}

Flag add_report(Flags flags, std::filesystem::path& into) {
  return flags.value("--report", into, "Page to write: .md, or .html with plots")
      .check([](const std::string& found) {
        const std::filesystem::path extension = std::filesystem::path(found).extension();
        return extension == ".md" || extension == ".html" ? ""
                                                          : "want a name that ends in .md or .html, found " + found;
      })
      .type("FILE");
}

Flag add_seed(Flags flags, const std::string& name, uint64_t& into, const std::string& help) {
  const auto take = [name, &into](const std::string& found) {
    const char* end = found.data() + found.size();
    const auto [rest, error] = std::from_chars(found.data(), end, into);
    if (error != std::errc() || rest != end)
      refuse_value(name, fmt::format("want a whole number from 0 to 2^64 - 1, found {}", found));
  };
  return flags.take(name, take, help).type("UINT");
}

Flag add_list(Flags flags, const std::string& name, NumberList list, const std::string& help) {
  const auto take = [name, list](const std::string& found) {
    list.into.clear();
    const char* at = found.data();
    const char* const end = at + found.size();
    while (true) {
      int64_t value = 0;
      const auto [rest, error] = std::from_chars(at, end, value);
      if (error != std::errc() || value < list.least || value > list.most || (rest != end && *rest != ','))
        refuse_value(name,
                     fmt::format("want numbers from {} to {} such as 1,2,4, found {}", list.least, list.most, found));
      list.into.push_back(value);
      if (rest == end) break;
      at = rest + 1;
    }
    std::sort(list.into.begin(), list.into.end());
    list.into.erase(std::unique(list.into.begin(), list.into.end()), list.into.end());
  };
  return flags.take(name, take, help).type("LIST").usual(fmt::format("{}", fmt::join(list.into, ",")));
}

void add_sampling(Flags flags, backend::SamplingParams& into, std::string_view where) {
  backend::for_each_field(into, [&](const backend::SamplingField& field, auto& value) {
    std::string name = fmt::format("--{}", field.name);
    std::ranges::replace(name, '_', '-');
    Flag flag = flags.value(name, value, fmt::format("{}{}", field.help, where));
    if constexpr (std::is_integral_v<std::remove_reference_t<decltype(value)>>)
      flag.whole(static_cast<int64_t>(field.range.least), static_cast<int64_t>(field.range.most));
    else
      flag.finite();
    flags.group(HelpGroup::kSampling);  // after the temperature
  });
}

void add_effort(Flags flags, text::ReasoningEffort& into, std::string_view where) {
  using enum text::ReasoningEffort;
  add_choice<text::ReasoningEffort>(flags, "--reasoning", {into, {{"low", kLow}, {"medium", kMedium}, {"high", kHigh}}},
                                    fmt::format("Effort told to the model{}", where));
}

void add_dense_format(Flags flags, const std::string& flag, backend::WeightFormat format, backend::DenseFormats& o) {
  const auto take = [flag, format, &o](const std::string& list) {
    const auto set = [&](std::optional<backend::WeightFormat>& layer, const std::string& name) {
      if (layer && *layer != format) refuse_value(flag, name + " is in --mxfp4-layers and --mxfp8-layers");
      layer = format;
    };
    size_t begin = 0;
    while (begin <= list.size()) {
      const size_t end = std::min(list.find(',', begin), list.size());
      const std::string name = list.substr(begin, end - begin);
      const bool mxfp4 = format == backend::WeightFormat::kMxfp4, all = name == "all";
      if (!all && name != "qkv" && name != "o" && name != "lm_head" && !(mxfp4 && name == "moe"))
        refuse_value(flag,
                     fmt::format("want a list of {}qkv, o, lm_head, or all; found {}", mxfp4 ? "moe, " : "", name));
      if (all || name == "qkv") set(o.qkv, "qkv");
      if (all || name == "o") set(o.o, "o");
      if (all || name == "lm_head") set(o.lm_head, "lm_head");
      begin = end + 1;
    }
  };
  const bool mxfp4 = format == backend::WeightFormat::kMxfp4;
  flags
      .take(flag, take,
            fmt::format("Dense layers to requantise while loading (lossy): qkv,o,lm_head or all{}",
                        mxfp4 ? "; moe, the experts, is MXFP4 as it comes" : ""))
      .type("LIST");
}

namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

std::string read_stream(std::FILE* stream, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, stream)) > 0;) {
    text.append(buffer, n);
    if (text.size() > kMaxTextBytes)
      throw Error(Code::kInvalidRequest, "{}: want at most {} bytes, found more", name, kMaxTextBytes);
  }
  if (std::ferror(stream) != 0) throw Error(Code::kIo, "{}: cannot read: {}", name, std::strerror(errno));
  return text;
}

}  // namespace

std::string read_text(const TextInput& input) {
  if (input.file.empty() && input.given) return input.text;
  if (input.file.empty() || input.file == "-") return read_stream(stdin, "standard input");
  return read_text(input.file);
}

std::string read_text(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) throw Error(Code::kIo, "{}: cannot open: {}", path.string(), std::strerror(errno));
  return read_stream(file.get(), path.string());
}

}  // namespace nibble::app
