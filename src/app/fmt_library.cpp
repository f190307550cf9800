// fmt inside the program: Debian and others have it as a shared library only, each in another version. What libfmt.so
// would have answered is answered from here, so the linker (--as-needed) leaves that one out; a symbol that is missing
// here brings it back, which tools/check_package.py finds.
#include <fmt/format-inl.h>

namespace fmt {

template auto detail::thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto detail::decimal_point_impl<char>(locale_ref) -> char;
template void detail::buffer<char>::append(const char*, const char*);

}  // namespace fmt
