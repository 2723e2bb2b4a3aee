#!/bin/sh
# Fetches English texts of several kinds from Debian's packages: real_documents.sh DIR
# For `snapexport eval --documents DIR DIR/more`: 12 texts in DIR, 48 more in DIR/more, each of more than 8,192 tokens.
# DIR/excerpt has a chapter of one of the texts. Needs apt-get, dpkg and an updated list of packages.
set -eu
out=$(mkdir -p "$1/more" "$1/excerpt" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python=$(apt-cache depends python3-doc | sed -n 's/.*Depends: \(python3\.[0-9]*-doc\)$/\1/p')
apt-get download -qq -o APT::Sandbox::User=root anarchism autoconf-doc bible-kjv bible-kjv-text crawl-common \
    debian-faq debian-history debian-policy debian-reference-en developers-reference dict-devil dict-foldoc \
    doc-debian fortunes git-doc jargon-text maint-guide mutt perl-doc "$python" vim-runtime
for package in *.deb; do dpkg -x "$package" .; done

# text NAME FILE...: as UTF-8, without the underlines and bold type of terminals.
text() {
    name=$1
    shift
    for file in "$@"; do
        case $file in *.gz | *.dz) gzip -dc "$file" ;; *) cat "$file" ;; esac
    done | iconv -f utf-8 -t utf-8 -c | sed 's/.\x08//g' >"$out/$name.txt"
}
doc=usr/share/doc
text autoconf-manual usr/share/info/autoconf.info.gz
text debian-faq $doc/debian/FAQ/debian-faq.en.txt.gz
text debian-policy $doc/debian-policy/policy.txt.gz
text developers-reference usr/share/developers-reference/developers-reference.txt.gz
text filesystem-hierarchy $doc/debian-policy/fhs/fhs-3.0.txt.gz
text jargon-file $doc/jargon-text/jargon.txt.gz
text maintainers-guide $doc/maint-guide/maint-guide.en.txt.gz
for kind in computers definitions people science songs-poems; do
    text "quotations-$kind" "usr/share/games/fortunes/$kind"
done
sed -n '/^Chapter.*Definitions and overview/,/^Chapter.*Getting and/p' "$out/debian-faq.txt" \
    >"$out/excerpt/debian-faq-1.txt"

text more/debian-reference usr/share/debian-reference/debian-reference.en.txt.gz
text more/debian-history $doc/debian-history/docs/project-history.en.txt.gz
text more/devils-dictionary usr/share/dictd/devil.dict.dz
text more/dictionary-of-computing usr/share/dictd/foldoc.dict.dz
text more/git-manual $doc/git-doc/user-manual.txt
text more/literary-quotations usr/share/crawl/dat/descript/quotes.txt
text more/mutt-manual $doc/mutt/manual.txt.gz
text more/vim-manual usr/share/vim/vim*/doc/usr_0?.txt
text more/vim-reference usr/share/vim/vim*/doc/editing.txt
for section in A2 A3 B1 C2 D3 E1 F1 G1 H1 I1 J2; do
    text "more/anarchist-faq-$section" "$doc/anarchism/markdown/sec$section.md.gz"
done
for page in faq/programming glossary howto/functional howto/logging-cookbook howto/regex reference/datamodel \
    tutorial/classes whatsnew/2.0; do
    text "more/python-$(basename $page)" "$doc/${python%-doc}/html/_sources/$page.rst.txt"
done
for page in perlfaq4 perlfaq8 perlhacktips perlipc perlport perlretut; do
    text "more/$page" usr/share/perl/*/pod/$page.pod
done
# The first twenty chapters of books of the King James Bible, without the verses' numbers.
for book in ge ex le nu dt jos jdg 1sam 1ki job isa mt lk act; do
    usr/bin/bible -p usr/lib -f "${book}1:1-${book}20:1" | sed 's/^[^ ]* //' >"$out/more/bible-$book.txt"
done
wc -c "$out"/*.txt "$out"/more/*.txt "$out"/excerpt/*.txt
