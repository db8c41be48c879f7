# The same as _relay_program.py, for machines without Python; what every Debian has of Perl is enough.
use strict;
use warnings;
use Errno qw(EAGAIN EINTR);
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use Socket;

my ($OPEN, $DATA, $END, $CLOSE, $MORE) = (1 .. 5);
my ($WINDOW, $CHUNK, $MOST) = (1 << 18, 1 << 15, 400);
my ($number, $incoming, $outgoing) = (0, "", "");
my %connections;
my $listener;

sub unblock { my $file = shift; fcntl($file, F_SETFL, fcntl($file, F_GETFL, 0) | O_NONBLOCK) }
sub later { return $!{EAGAIN} || $!{EINTR} || $!{EWOULDBLOCK} }
sub queue { my ($kind, $which, $payload) = @_; $outgoing .= pack("CNN", $kind, $which, length $payload) . $payload }

sub drop {
    my $which = shift;
    close((delete $connections{$which})->{sock});
    queue($CLOSE, $which, "");
}

sub settle {
    my $which = shift;
    my $one = $connections{$which};
    return unless $one->{ended} && !length $one->{pending};
    if ($one->{finished}) { close((delete $connections{$which})->{sock}) }
    else { shutdown($one->{sock}, 1) or drop($which) }
}

sub take {
    my $paddr = accept(my $sock, $listener) or return;
    unblock($sock);
    setsockopt($sock, getprotobyname("tcp") || 6, 1, 1);
    $number += 2;
    $connections{$number} = {sock => $sock, credit => $WINDOW, pending => "", ended => 0, finished => 0};
    queue($OPEN, $number, "");
}

sub hear {
    my $which = shift;
    my $one = $connections{$which} or return;
    my $size = $one->{credit} < $CHUNK ? $one->{credit} : $CHUNK;
    my $got = sysread($one->{sock}, my $data, $size);
    if (!defined $got) { drop($which) unless later(); return }
    if ($got) { $one->{credit} -= $got; queue($DATA, $which, $data) }
    else { $one->{finished} = 1; queue($END, $which, ""); settle($which) }
}

sub pass_on {
    my $which = shift;
    my $one = $connections{$which} or return;
    my $sent = syswrite($one->{sock}, $one->{pending});
    if (!defined $sent) { drop($which) unless later(); return }
    substr($one->{pending}, 0, $sent, "");
    queue($MORE, $which, pack("N", $sent));
    settle($which);
}

sub obey {
    my $got = sysread(STDIN, $incoming, 1 << 16, length $incoming);
    if (!defined $got) { return if later(); exit 1 }
    exit 0 unless $got;
    while (length($incoming) >= 9) {
        my ($kind, $which, $size) = unpack("CNN", $incoming);
        last if length($incoming) < 9 + $size;
        my $payload = substr($incoming, 9, $size);
        substr($incoming, 0, 9 + $size, "");
        my $one = $connections{$which} or next;
        if ($kind == $DATA) { $one->{pending} .= $payload }
        elsif ($kind == $MORE) { $one->{credit} += unpack("N", $payload) }
        elsif ($kind == $END) { $one->{ended} = 1; settle($which) }
        elsif ($kind == $CLOSE) { close((delete $connections{$which})->{sock}) }
    }
}

my $port = shift @ARGV;
$SIG{PIPE} = "IGNORE";
binmode STDIN;
binmode STDOUT;
socket($listener, PF_INET, SOCK_STREAM, getprotobyname("tcp") || 6) or die "socket: $!\n";
setsockopt($listener, SOL_SOCKET, SO_REUSEADDR, 1);
if (!bind($listener, sockaddr_in($port, INADDR_LOOPBACK)) || !listen($listener, 128)) {
    syswrite(STDOUT, "\nrelay failed: port $port: $!\n");
    exit 0;
}
syswrite(STDOUT, sprintf("\nrelay ready: %d\n", (sockaddr_in(getsockname($listener)))[0]));
unblock(\*STDOUT);
unblock($listener);
while (1) {
    my ($reading, $writing) = ("", "");
    vec($reading, fileno(STDIN), 1) = 1;
    vec($reading, fileno($listener), 1) = 1 if keys(%connections) < $MOST;
    vec($writing, fileno(STDOUT), 1) = 1 if length $outgoing;
    for my $one (values %connections) {
        vec($reading, fileno($one->{sock}), 1) = 1 if $one->{credit} && !$one->{finished};
        vec($writing, fileno($one->{sock}), 1) = 1 if length $one->{pending};
    }
    my $found = select($reading, $writing, undef, undef);
    next if $found < 0;
    my %numbers = map { fileno($connections{$_}{sock}) => $_ } keys %connections;
    if (vec($writing, fileno(STDOUT), 1)) {
        my $sent = syswrite(STDOUT, $outgoing, 1 << 16);
        if (defined $sent) { substr($outgoing, 0, $sent, "") }
        elsif (!later()) { exit 1 }
    }
    for my $descriptor (keys %numbers) {
        pass_on($numbers{$descriptor}) if vec($writing, $descriptor, 1);
        hear($numbers{$descriptor}) if vec($reading, $descriptor, 1);
    }
    take() if vec($reading, fileno($listener), 1);
    obey() if vec($reading, fileno(STDIN), 1);
}
