#include "text/typescript_schema.h"

#include "base/error.h"
#include "text/text_stream.h"

#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <cmath>
#include <unordered_set>
#include <vector>

namespace nibble::text {
namespace {

using Json = nlohmann::ordered_json;

const Json* field_of(const Json& schema, std::string_view key) {
  if (!schema.is_object()) return nullptr;
  const auto it = schema.find(key);
  return it == schema.end() ? nullptr : &*it;
}

const std::string* find_string(const Json& schema, std::string_view key) {
  const Json* value = field_of(schema, key);
  return value != nullptr && value->is_string() ? value->get_ptr<const std::string*>() : nullptr;
}

const Json* find_array(const Json& schema, std::string_view key) {
  const Json* value = field_of(schema, key);
  return value != nullptr && value->is_array() ? value : nullptr;
}

bool is_enum(const Json& schema) {
  const Json* values = find_array(schema, "enum");
  return values != nullptr && !values->empty();
}

bool is_nullable(const Json& schema) {
  const Json* value = field_of(schema, "nullable");
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

// Shortest digits that read back as the same double, laid out as serde_json does: an exponent below 1e-5 and from 1e16
// on, and always a sign of being no integer.
std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  const bool plain = value == 0 || (std::abs(value) >= 1e-5 && std::abs(value) < 1e16);
  std::array<char, 40> buffer{};
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  std::string text(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr);
  if (plain) return text.find('.') == std::string::npos ? text + ".0" : text;
  const size_t e = text.find('e');  // 1e+20, 1e-07
  return fmt::format("{}e{}", text.substr(0, e), std::stoi(text.substr(e + 1)));
}

// " // description default: …" after a variant of a union.
void append_comments(const std::string* description, const std::string& default_text, std::string& out) {
  std::vector<std::string_view> comments;
  if (description != nullptr) comments.push_back(*description);
  if (!default_text.empty()) comments.push_back(default_text);
  if (!comments.empty()) out += fmt::format(" // {}", fmt::join(comments, " "));
}

class SchemaWriter {
 public:
  explicit SchemaWriter(std::string_view where) : where_(where) {}

  std::string type_of(const Json& schema, size_t indent) {
    if (const Json* variants = find_array(schema, "oneOf")) return union_of(*variants, indent);
    if (const Json* types = find_array(schema, "type")) {
      std::vector<std::string_view> names;
      for (const Json& type : *types) {
        if (!type.is_string()) continue;
        const auto& name = type.get_ref<const std::string&>();
        names.push_back(name == "integer" ? "number" : std::string_view(name));
      }
      return names.empty() ? "any" : fmt::format("{}", fmt::join(names, " | "));
    }
    const std::string* type = find_string(schema, "type");
    return type == nullptr ? "any" : typed(*type, schema, indent);
  }

  void append_json(const Json& value, std::string& out) {
    if (value.is_number_float()) {
      out += number_text(value.get<double>());
    } else if (value.is_array() || value.is_object()) {
      const bool is_object = value.is_object();
      std::string_view comma;
      out += is_object ? '{' : '[';
      for (const auto& [key, item] : value.items()) {
        out += comma;
        if (is_object) out += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ":";
        enter(is_object ? std::string_view(key) : "items");
        append_json(item, out);
        leave();
        comma = ",";
      }
      out += is_object ? '}' : ']';
    } else {
      out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
  }

 private:
  enum class EnumDefault { kBare, kQuoted };

  void enter(std::string_view step) {
    path_.push_back(step);
    if (path_.size() <= static_cast<size_t>(kMaxSchemaDepth)) return;
    std::string place;
    Utf8Stream whole_characters;
    for (size_t i = 0; i < 4; ++i) place += whole_characters.push(fmt::format(".{}", path_[i].substr(0, 32)));
    throw Error(Code::kInvalidRequest, "{}: the schema nests deeper than {} levels, below {}…", where_, kMaxSchemaDepth,
                place);
  }
  void leave() { path_.pop_back(); }

  std::string union_of(const Json& variants, size_t indent) {
    const std::string pad(indent, ' ');
    std::string out;
    enter("oneOf");
    for (const Json& variant : variants) {
      out += fmt::format("\n{} | {}", pad, nullable_type_of(variant, indent + 3));
      append_comments(find_string(variant, "description"), default_of(variant, EnumDefault::kQuoted), out);
    }
    leave();
    return out;
  }

  std::string object_type(const Json& schema, size_t indent) {
    const std::string pad(indent, ' ');
    std::string out;
    if (const std::string* description = find_string(schema, "description"))
      out = fmt::format("{}// {}\n", pad, *description);
    out += "{\n";
    std::unordered_set<std::string_view> required;
    if (const Json* names = find_array(schema, "required")) {
      for (const Json& name : *names)
        if (name.is_string()) required.insert(name.get_ref<const std::string&>());
    }
    const Json* properties = field_of(schema, "properties");
    if (properties != nullptr && properties->is_object()) {
      for (const auto& [key, value] : properties->items()) {
        enter(key);
        const std::string name = key + (required.contains(key) ? "" : "?");
        if (const std::string* title = find_string(value, "title"))
          out += fmt::format("{0}// {1}\n{0}//\n", pad, *title);
        const std::string* description = find_string(value, "description");
        if (description != nullptr && field_of(value, "oneOf") == nullptr)
          out += fmt::format("{}// {}\n", pad, *description);
        if (const Json* examples = find_array(value, "examples"); examples != nullptr && !examples->empty()) {
          out += pad + "// Examples:\n";
          for (const Json& example : *examples)
            if (example.is_string()) out += fmt::format("{}// - \"{}\"\n", pad, example.get_ref<const std::string&>());
        }
        const bool is_union = find_array(value, "oneOf") != nullptr;
        is_union ? append_union_property(value, name, indent, out) : append_plain_property(value, name, indent, out);
        leave();
      }
    }
    return out + pad + "}";
  }

  std::string array_type(const Json& schema, size_t indent) {
    const Json* items = field_of(schema, "items");
    if (items == nullptr) return "Array<any>";
    enter("items");
    std::string type = type_of(*items, indent) + "[]";
    leave();
    return type;
  }

  std::string typed(const std::string& type, const Json& schema, size_t indent) {
    if (type == "object") return object_type(schema, indent);
    if (type == "array") return array_type(schema, indent);
    if (type == "number" || type == "integer") return "number";
    if (type == "boolean") return "boolean";
    if (type != "string") return "any";
    std::string joined;
    if (const Json* values = find_array(schema, "enum")) {
      for (const Json& value : *values) {
        if (!value.is_string()) continue;
        joined += fmt::format("{}\"{}\"", joined.empty() ? "" : " | ", value.get_ref<const std::string&>());
      }
    }
    return joined.empty() ? "string" : joined;
  }

  std::string nullable_type_of(const Json& schema, size_t indent) {
    std::string type = type_of(schema, indent);
    // The plain search for "null" is openai-harmony's: a comment that says null suppresses the suffix too.
    if (is_nullable(schema) && type.find("null") == std::string::npos) type += " | null";
    return type;
  }

  // "default: …" or nothing. The default of an enum is bare at a property and quoted in a union.
  std::string default_of(const Json& schema, EnumDefault style) {
    const Json* value = field_of(schema, "default");
    if (value == nullptr) return {};
    std::string out = "default: ";
    if (value->is_string() && !is_enum(schema)) return out + '"' + value->get_ref<const std::string&>() + '"';
    if (value->is_string() && style == EnumDefault::kBare) return out + value->get_ref<const std::string&>();
    append_json(*value, out);
    return out;
  }

  void append_plain_property(const Json& schema, const std::string& name, size_t indent, std::string& out) {
    out += fmt::format("{}{}: {},", std::string(indent, ' '), name, nullable_type_of(schema, indent + 4));
    // A property with an unusable oneOf loses its default: openai-harmony's way.
    const std::string value =
        field_of(schema, "oneOf") == nullptr ? default_of(schema, EnumDefault::kBare) : std::string();
    out += value.empty() ? "\n" : fmt::format(" // {}\n", value);
  }

  void append_union_property(const Json& schema, const std::string& name, size_t indent, std::string& out) {
    const std::string pad(indent, ' ');
    const Json& variants = *find_array(schema, "oneOf");
    const std::string* description = find_string(schema, "description");
    const std::string* first = variants.empty() ? nullptr : find_string(variants.front(), "description");
    // A description that the first variant repeats is printed once.
    const bool above = description != nullptr && !(first != nullptr && *first == *description);
    if (above) out += fmt::format("{}// {}\n", pad, *description);
    if (const std::string value = default_of(schema, EnumDefault::kBare); !value.empty())
      out += pad + "// " + value + "\n";
    out += fmt::format("{}{}:\n", pad, name);
    enter("oneOf");
    for (size_t i = 0; i < variants.size(); ++i) {
      const Json& variant = variants[i];
      out += fmt::format("{} | {}", pad, nullable_type_of(variant, indent + 3));
      const std::string* own = find_string(variant, "description");
      const bool said = (i == 0 && above) || (own != nullptr && description != nullptr && *own == *description);
      append_comments(said ? nullptr : own, default_of(variant, EnumDefault::kBare), out);
      out += "\n";
    }
    leave();
    out += pad + ",\n";
  }

  std::string_view where_;
  std::vector<std::string_view> path_;  // keys from the root to the value being written
};

}  // namespace

std::string typescript_type(const Json& schema, std::string_view where) {
  return SchemaWriter(where).type_of(schema, 0);
}

std::string compact_json(const Json& value, std::string_view where) {
  std::string out;
  SchemaWriter(where).append_json(value, out);
  return out;
}

}  // namespace nibble::text
