# SPDX-License-Identifier: Apache-2.0
# A file as a C array: cmake -DFROM=file -DTO=file.c -DNAME=symbol -P embed.cmake
file(READ ${FROM} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," array "${hex}")
file(WRITE ${TO} "#include \"server/descriptor_set.h\"\nconst uint8_t ${NAME}[] = {${array}};\nconst size_t ${NAME}_bytes = ${bytes};\n")
