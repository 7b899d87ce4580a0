# One file as a C++ string_view; see embed.cmake.
file(READ ${INPUT} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes_list "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes_list "${bytes_list}")
file(WRITE ${OUTPUT} "#include \"embedded.h\"\nnamespace kveval::embedded {\nstatic constexpr unsigned char kBytes[] = {\n${bytes_list}0};\nextern const std::string_view ${NAME};\nconst std::string_view ${NAME}(reinterpret_cast<const char*>(kBytes), ${bytes});\n}  // namespace kveval::embedded\n")
