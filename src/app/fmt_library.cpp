// Puts fmt inside the program. Debian and others ship it only as a shared library, each in another version. The symbols
// that libfmt.so would provide are defined here, so the linker (--as-needed) drops it. If one is missing here,
// libfmt.so comes back, and tools/check_package.py reports it.
#include <fmt/format-inl.h>

namespace fmt {

template auto detail::thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto detail::decimal_point_impl<char>(locale_ref) -> char;
template void detail::buffer<char>::append(const char*, const char*);
template void detail::vformat_to<char>(detail::buffer<char>&, string_view, basic_format_args<format_context>,
                                       detail::locale_ref);
template auto detail::dragonbox::to_decimal<float>(float) noexcept -> dragonbox::decimal_fp<float>;
template auto detail::dragonbox::to_decimal<double>(double) noexcept -> dragonbox::decimal_fp<double>;

}  // namespace fmt
