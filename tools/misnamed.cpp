// A name for each rule of .clang-tidy that breaks it, for tools/lint.sh to see that the rules bite. Never compiled.
namespace Rooms {  // breaks it: a namespace
struct Inside {};
}  // namespace Rooms
class lower_class {};          // breaks it: a class
struct lower_struct {};        // breaks it: a struct
enum class lower_enum { kA };  // breaks it: an enumeration
using lower_alias = int;       // breaks it: an alias
enum class Kind {
  Plain,  // breaks it: an enumerator
};
const int Limit = 1;           // breaks it: a constant
constexpr int kind_count = 1;  // breaks it: a constant expression
int Global = 0;                // breaks it: a variable
int DoIt();                    // breaks it: a function
int scaled(int Factor);        // breaks it: a parameter
struct Shape {
  int Rows;  // breaks it: a public member
};
class Owner {
  int count;  // breaks it: a private member
};
