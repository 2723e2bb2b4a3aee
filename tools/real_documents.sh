#!/bin/sh
# Fetches English texts of several kinds from Debian's packages: real_documents.sh DIR
# For `snapexport eval --documents DIR`. Needs apt-get and dpkg. DIR/excerpt has a chapter of one of the texts.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq -o APT::Sandbox::User=root autoconf-doc debian-faq debian-policy \
    developers-reference fortunes jargon-text maint-guide
for package in *.deb; do dpkg -x "$package" .; done

# text NAME FILE: as UTF-8, without the underlines and bold type of terminals.
text() {
    case $2 in *.gz) gzip -dc "$2" ;; *) cat "$2" ;; esac |
        iconv -f utf-8 -t utf-8 -c | sed 's/.\x08//g' >"$out/$1.txt"
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
mkdir -p "$out/excerpt"
sed -n '/^Chapter.*Definitions and overview/,/^Chapter.*Getting and/p' "$out/debian-faq.txt" \
    >"$out/excerpt/debian-faq-1.txt"
wc -c "$out"/*.txt "$out"/excerpt/*.txt
