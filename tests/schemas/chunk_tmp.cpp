#include "text/grammar.h"
#include "text/grammar_rules.h"
#include <fmt/format.h>
#include <chrono>
#include <algorithm>
using namespace nibble::text;
using Clock = std::chrono::steady_clock;
double us(Clock::time_point s){return std::chrono::duration<double,std::micro>(Clock::now()-s).count();}
int main(){
  const Tokenizer tokenizer = Tokenizer::o200k_harmony();
  const GrammarCompiler compiler(tokenizer);
  const int32_t end = *tokenizer.special_id("<|return|>");
  std::string doc="\""; for(int i=0;i<12;++i) doc+="It was the best of times, it was the worst of times. "; doc+="\"";
  const std::string c=any_character_expression();
  for (int chunk : {0,1,8,16,25,40}) {
    std::string g;
    if (chunk==0) g=fmt::format("root ::= \"\\\"\" h \"\\\"\"\nh ::= Regex({})\n", literal(c+"*"));
    else g=fmt::format("root ::= \"\\\"\" {} t \"\\\"\"\nh ::= Regex({})\nt ::= Regex({})\n", [&]{std::string o; if(chunk==1) return std::string("h{200}"); for(int i=0;i<200/chunk;++i) o+="h "; return o;}(), literal(chunk==1? c : fmt::format("{}{{{}}}",c,chunk)), literal(c+"*"));
    auto s=Clock::now();
    try {
    const Grammar grammar = compiler.content({.kind=ContentRule::Kind::kGrammar,.grammar=g,.where="t"},{end});
    double comp=us(s)/1000;
    std::vector<double> f; std::vector<uint32_t> mask(tokenizer.max_id()/32+1);
    GrammarMatcher m=grammar.matcher(); bool ok=true;
    for (auto t: tokenizer.encode(doc)) { auto a=Clock::now(); m.fill(mask); f.push_back(us(a)); if(!m.accept(t)) {ok=false;break;} }
    double total=0; for(double x:f) total+=x;
    std::sort(f.begin(),f.end());
    fmt::print("chunk {} compile {:.0f} ms fill median {:.0f} p90 {:.0f} max {:.0f} us, sum {:.0f} ms, ok {}\n",chunk,comp,f[f.size()/2],f[f.size()*9/10],f.back(),total/1000,ok);
    } catch (const std::exception& e) { fmt::print("chunk {} {}\n",chunk,e.what()); }
  }
}
