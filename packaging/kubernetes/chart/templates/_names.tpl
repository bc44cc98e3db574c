{{- define "muster.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "muster.labels" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* CEL: whether Muster's scheduler places the pod `object`. Names in schedulerConfig are not known here. */}}
{{- define "muster.scheduled" -}}
{{- if .Values.server.schedulerNames -}}
object.spec.schedulerName in [{{ range $index, $name := .Values.server.schedulerNames }}{{ if $index }}, {{ end }}'{{ $name }}'{{ end }}]
{{- else -}}
object.spec.schedulerName != 'default-scheduler'
{{- end }}
{{- end }}
